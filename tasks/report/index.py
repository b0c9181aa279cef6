"""`dataset.json`: what the dataset consists of and what it was made with (pure)."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from tasks.dataset.scored import Scored
from tasks.job.spec import SCHEMA_VERSION
from tasks.ledger.receipt import Receipt
from tasks.report.code_version import CodeVersion
from tasks.report.retokenized import Retokenized
from tasks.report.summary import Summary


def dataset_index(
    summary: Summary,
    receipts: Mapping[int, Receipt],
    job: Mapping[str, Any],
    servers: Sequence[Mapping[str, Any]],
    retokenized: Retokenized,
    code: CodeVersion,
) -> dict[str, Any]:
    """Return the object that is stored.

    Args:
        summary: totals of the job.
        receipts: the counting receipts (highest generation per batch).
        job: `job.json`.
        servers: every state in which a server of the job passed its probe.
        retokenized: what text would have done to a sample.
        code: that publishes it.
    """
    return {
        "schema": SCHEMA_VERSION,
        "job_id": summary.job_id,
        "complete": not summary.problem,
        "problem": summary.problem,
        "batches": {"total": summary.batches_total, "committed": summary.batches_committed},
        "rows": dict(summary.rows),
        "scored": Scored(int(summary.rows["accepted"])).as_json(),
        "tokens": dict(summary.tokens),
        "shards": [
            {"batch": batch, "generation": receipt.generation, **attrs.asdict(receipt.shard)}
            for batch in sorted(receipts)
            if (receipt := receipts[batch]).shard is not None
        ],
        "provenance": provenance(job, servers, code),
        "retokenized": {"rows": retokenized.rows, "changed": retokenized.changed},
    }


def provenance(
    job: Mapping[str, Any], servers: Sequence[Mapping[str, Any]], code: CodeVersion
) -> dict[str, Any]:
    """Return what made the rows: model, tokenizer, grammar, sampling, servers, code."""
    model, resolved = job["spec"]["model"], job["resolved"]
    return {
        "model": {"tokenizer": model["tokenizer"], "revision": model.get("revision")},
        "tokenizer": resolved["tokenizer"],
        "template_args": resolved.get("template_args", {}),
        "grammar": resolved.get("grammar", {}),
        "sampling": resolved.get("sampling", {}),
        "mix": resolved.get("mix", []),
        "servers": list(servers),
        "rawseq": code.version,
        "rawseq_commit": code.commit,
    }
