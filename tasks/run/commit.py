"""What happens to a checked batch: files, then its receipt, last; and what the receipts add up to.

Blocking functions; the steps run them on the run's own threads.
"""

import time
from collections import Counter

import attrs

from tasks.dataset.shard import encode_frequencies, encode_provenance, encode_rejected, encode_shard
from tasks.ledger.ledger import FileEntry, Receipt
from tasks.report.publish import Published, publish_dataset
from tasks.report.summary import Summary
from tasks.rows.records import CheckedBatch
from tasks.run.batch import RenderedBatch
from tasks.run.memory import give_back
from tasks.run.run import Run


@attrs.frozen(slots=True)
class BatchFiles:
    """The uploaded files of one batch and its counts: what the receipt will say."""

    shard: FileEntry | None
    rejected: FileEntry | None
    provenance: FileEntry
    frequencies: FileEntry | None
    by_verdict: dict[str, int]
    accepted: int
    prompt_tokens: int
    output_tokens: int


def upload(run: Run, checked: CheckedBatch) -> BatchFiles:
    """Encode the batch's files and put each under the sha256 of its bytes."""
    accepted = int(checked.accepted.sum())
    put = run.ledger.put_file
    prompt = int(checked.inputs.lengths[checked.accepted].sum())
    output = int(checked.outputs.lengths[checked.accepted].sum())
    refused = ~checked.accepted
    lost = int((checked.inputs.lengths + checked.outputs.lengths)[refused].sum())
    rows = len(checked)
    return BatchFiles(
        shard=put("shards", encode_shard(checked), accepted, prompt + output) if accepted else None,
        rejected=put("rejected", encode_rejected(checked), rows - accepted, lost)
        if accepted < rows
        else None,
        provenance=put("provenance", encode_provenance(checked), rows, prompt + output + lost),
        frequencies=put("frequencies", encode_frequencies(checked), accepted, output) if accepted else None,
        by_verdict=dict(sorted(Counter(str(verdict.code) for verdict in checked.verdicts).items())),
        accepted=accepted,
        prompt_tokens=prompt,
        output_tokens=output,
    )


def commit(run: Run, rendered: RenderedBatch, files: BatchFiles) -> Receipt:
    """Write the batch's receipt if absent, then drop its journal; return the receipt that counts.

    Raises:
        TakenError: another worker took the batch over while this one was silent; it goes on there.
    """
    total = sum(files.by_verdict.values())
    batch = rendered.batch
    receipt = Receipt(
        job_id=run.spec.job_id,
        batch=batch.index,
        generation=rendered.generation,
        start=batch.start,
        stop=batch.stop,
        fingerprint=batch.fingerprint,
        shard=files.shard,
        rejected=files.rejected,
        provenance=files.provenance,
        frequencies=files.frequencies,
        rows={
            "total": total,
            "accepted": files.accepted,
            "rejected": total - files.accepted,
            "by_verdict": files.by_verdict,
        },
        tokens={"prompt": files.prompt_tokens, "output": files.output_tokens},
        resolved_sha256=run.resolved_sha256,
        template_sha256=run.resolved["tokenizer"]["template_sha256"],
        reason=rendered.reason,
    )
    run.keeper.check(rendered.unit)
    winner = run.ledger.commit(receipt)
    run.keeper.committed(rendered.unit, rendered.journal)
    give_back()
    return winner


def publish(run: Run, failures: tuple[tuple[int, str], ...]) -> tuple[Summary, Published]:
    """Fold the receipts into totals; write index, card and page of what is committed."""
    assert run.plan is not None
    receipts = run.ledger.receipts()
    totals = run.ledger.fold(receipts)
    summary = Summary(
        job_id=run.spec.job_id,
        store=run.store.uri,
        batches_total=len(run.plan.batches),
        batches_committed=len(receipts),
        batches_skipped=len(run.plan.batches) - run.progress.batches,
        failures=failures,
        rows=totals.rows,
        tokens=totals.tokens,
        accepted_floor=run.spec.policy.accepted_floor,
        generated_rows=run.progress.rows_made,
        generated_tokens=run.progress.tokens,
        seconds=time.monotonic() - run.progress.started,
    )
    return summary, publish_dataset(run.store, run.vocabulary, run.ledger.job(), summary, receipts)
