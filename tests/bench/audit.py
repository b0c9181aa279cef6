"""The audit at scale: time and peak memory of reading everything back, as ratios to the smallest size.

    python tests/bench/audit.py [--sizes 10000 100000 1000000] [--root /dev/shm] [--s3]

Rows are made up, about 80 ids each, 250 to a batch; the grammar is left out (see check_tokens.py).
Every phase is a process of its own. With --s3 the store is a SeaweedFS below the root. Prints a table, and
one JSON object as its last line.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from tasks.audit.reread import audit
from tasks.audit.sample import RowSample
from tasks.dataset.shard import encode_frequencies, encode_provenance, encode_shard
from tasks.job.spec import JobSpec
from tasks.ledger.ledger import Ledger, Receipt
from tasks.prompts.opening import open_sources
from tasks.prompts.plan_batches import extend_plan
from tasks.rows.records import CheckedBatch, Completion, Ragged, Segment, Verdict
from tasks.rows.verdicts import Code
from tasks.store.contract import ObjectStore, canonical, sha256_hex
from tasks.store.opening import open_store
from tests.bench.ledger import peak_mb

ROWS_PER_BATCH = 250
RESOLVED = {"tokenizer": {"size": 1000, "template_sha256": "t"}}
PHASES = ("make", "audit")


def job_of(folder: Path) -> tuple[JobSpec, ObjectStore, Ledger]:
    """Return the benchmark's job over `questions.jsonl` of a folder."""
    uri = os.environ.get("RAWSEQ_BENCH_STORE") or str(folder / "store")
    spec = JobSpec(
        name="bench",
        model={"tokenizer": "tiny"},
        prompts={"sources": [str(folder / "questions.jsonl")]},
        servers={"urls": ["http://127.0.0.1:1"]},
        batch={"rows": ROWS_PER_BATCH},
        store={"uri": uri, "endpoint_url": os.environ.get("AWS_ENDPOINT_URL_S3")},
    )
    store = open_store(spec.store, spec.job_id)
    return spec, store, Ledger(store, spec.job_id)


def row_of(name: str, number: int) -> Completion:
    """Return a made-up answer: 20 prompt ids, 40 to 79 output ids."""
    noise = np.random.default_rng(number)
    output = noise.integers(0, 999, 40 + number % 40, np.int32)
    output[-1] = 999
    facts = {"server": "http://127.0.0.1:1", "rid": f"{number:032x}", "completion_tokens": output.size}
    return Completion(name, noise.integers(0, 999, 20, np.int32), output, "stop", 999, facts=facts)


def checked_of(index: int, rows: list[Completion]) -> CheckedBatch:
    """Return a batch of complete rows."""
    verdicts = []
    for row in rows:
        total = row.input_ids.size + row.output_ids.size
        parts = (
            Segment("prompt", 0, 20),
            Segment("content", 20, total - 1),
            Segment("end", total - 1, total),
        )
        verdicts.append(Verdict(Code.COMPLETE, -1, parts))
    return CheckedBatch(
        batch=index,
        row_ids=tuple(row.row_id for row in rows),
        inputs=Ragged.from_rows([row.input_ids for row in rows]),
        outputs=Ragged.from_rows([row.output_ids for row in rows]),
        verdicts=tuple(verdicts),
        accepted=np.ones(len(rows), np.bool_),
        completions=tuple(rows),
        turns=np.zeros(len(rows), np.int16),
        samples=np.zeros(len(rows), np.int16),
        metadata=("{}",) * len(rows),
    )


def make(folder: Path) -> int:
    """Plan and commit everything."""
    spec, _, ledger = job_of(folder)
    ledger.open_job(spec, RESOLVED)
    resolved = sha256_hex(canonical(RESOLVED))
    plan = extend_plan(ledger, open_sources(spec.prompts), spec, resolved)
    for batch in plan.batches:
        rows = [row_of(f"questions:q{n}#t0~s0", n) for n in range(batch.start, batch.stop)]
        checked = checked_of(batch.index, rows)
        prompt, output = checked.inputs.ids.size, checked.outputs.ids.size
        put, count = ledger.put_file, len(rows)
        receipt = Receipt(
            job_id=ledger.job_id,
            batch=batch.index,
            generation=0,
            start=batch.start,
            stop=batch.stop,
            fingerprint=batch.fingerprint,
            shard=put("shards", encode_shard(checked), count, prompt + output),
            rejected=None,
            provenance=put("provenance", encode_provenance(checked), count, prompt + output),
            frequencies=put("frequencies", encode_frequencies(checked), count, output),
            rows={"total": count, "accepted": count, "rejected": 0, "by_verdict": {"complete": count}},
            tokens={"prompt": prompt, "output": output},
            resolved_sha256=resolved,
            template_sha256="t",
        )
        ledger.commit(receipt)
    return plan.records


def read_back(folder: Path) -> int:
    """Audit it, choosing rows for re-scoring on the way."""
    _, store, _ = job_of(folder)
    sample = RowSample(64)
    report = audit(store, None, sample.see)
    assert report.trainable, report.reason
    assert len(sample.rows()) == 64
    return int(report.rows["total"])


def write_questions(path: Path, rows: int) -> None:
    """Write so many numbered prompts."""
    with path.open("wb") as file:
        file.writelines(b'{"id":"q%d","prompt":"Why is it %d?"}\n' % (n, n) for n in range(rows))


def one_phase(phase: str, folder: Path) -> None:
    """Run a phase here and print its time and peak memory."""
    start, cpu = time.perf_counter(), time.process_time()
    rows = {"make": make, "audit": read_back}[phase](folder)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    peak = peak_mb()
    print(json.dumps({"phase": phase, "rows": rows, "seconds": seconds, "cpu_seconds": cpu, "peak_mb": peak}))


def measure(rows: int, root: Path, s3: bool) -> list[dict[str, Any]]:
    """Return one result per phase."""
    folder = Path(tempfile.mkdtemp(prefix="rawseq-audit-", dir=root))
    env = dict(os.environ)
    try:
        with ExitStack() as stack:
            write_questions(folder / "questions.jsonl", rows)
            if s3:
                from deployments.local.seaweed import start_seaweed

                server = stack.enter_context(start_seaweed(folder / "s3"))
                keys = {name.upper(): value for name, value in server.credentials.items()}
                env |= keys | {"AWS_ENDPOINT_URL_S3": server.http_url, "AWS_REGION": "us-east-1"}
                env["RAWSEQ_BENCH_STORE"] = f"s3://{server.bucket}/bench"
            results = []
            for phase in PHASES:
                command = [sys.executable, __file__, "--phase", phase, "--root", str(folder)]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env)
                results.append(json.loads(done.stdout.splitlines()[-1]))
            return results
    finally:
        shutil.rmtree(folder)


def table(results: list[dict[str, Any]]) -> str:
    """Return a Markdown table: seconds, CPU a row and peak memory, with ratios to the first size."""
    first: dict[str, dict[str, Any]] = {}
    lines = ["| phase | rows | seconds | CPU µs/row (ratio) | peak MB (ratio) |", "|---|---|---|---|---|"]
    for r in sorted(results, key=lambda r: (PHASES.index(r["phase"]), r["rows"])):
        base = first.setdefault(r["phase"], r)
        cost, base_cost = r["cpu_seconds"] / r["rows"] * 1e6, base["cpu_seconds"] / base["rows"] * 1e6
        lines.append(
            f"| {r['phase']} | {r['rows']:,} | {r['seconds']:.2f} | {cost:.1f} ({cost / base_cost:.2f}) | "
            f"{r['peak_mb']:.0f} ({r['peak_mb'] / base['peak_mb']:.2f}) |"
        )
    return "\n".join(lines)


def main() -> None:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--root", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--s3", action="store_true")
    parser.add_argument("--phase", choices=PHASES)
    arguments = parser.parse_args()
    if arguments.phase:
        one_phase(arguments.phase, arguments.root)
        return
    results = [result for rows in arguments.sizes for result in measure(rows, arguments.root, arguments.s3)]
    print(table(results))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
