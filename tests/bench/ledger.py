"""Ledger at scale: plan, commit, resume and add up, in time and peak memory, as ratios to the smallest size.

    python tests/bench/ledger.py [--sizes 10000 100000 1000000] [--root /dev/shm]

Every phase runs in a process of its own, so that its peak memory is its own. A tmpfs root measures our cost
rather than the disk's. Prints a table, and one JSON object as its last line.
"""

import argparse
import json
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tasks.job.spec import JobSpec
from tasks.ledger.ledger import Ledger, Receipt
from tasks.prompts.opening import open_sources
from tasks.prompts.plan_batches import extend_plan
from tasks.store.contract import ObjectStore, canonical, sha256_hex
from tasks.store.opening import open_store

ROWS_PER_BATCH = 250  # ten million rows in forty thousand batches
RESOLVED = {"tokenizer": {"size": 1000, "template_sha256": "t"}}
PHASES = ("plan", "commit", "resume", "status")


def job_of(folder: Path) -> tuple[JobSpec, ObjectStore, Ledger]:
    """Return the benchmark's job over `questions.jsonl` of a folder."""
    spec = JobSpec(
        name="bench",
        model={"tokenizer": "tiny"},
        prompts={"sources": [str(folder / "questions.jsonl")]},
        servers={"urls": ["http://127.0.0.1:1"]},
        batch={"rows": ROWS_PER_BATCH},
        store={"uri": str(folder / "store")},
    )
    store = open_store(spec.store, spec.job_id)
    return spec, store, Ledger(store, spec.job_id)


def plan(folder: Path) -> int:
    """Plan everything, for the first time."""
    spec, _, ledger = job_of(folder)
    ledger.open_job(spec, RESOLVED)
    return len(extend_plan(ledger, open_sources(spec.prompts), spec, "r").batches)


def commit(folder: Path) -> int:
    """Write one receipt a batch; all name the same three files, so that only the ledger is measured."""
    _, _, ledger = job_of(folder)
    files = {
        kind: ledger.put_file(name, name.encode() * 100, 250, 1000)
        for kind, name in (("shard", "shards"), ("provenance", "provenance"), ("frequencies", "frequencies"))
    }
    batches = ledger.plan().batches
    for batch in batches:
        rows = batch.stop - batch.start
        receipt = Receipt(
            job_id=ledger.job_id,
            batch=batch.index,
            generation=0,
            start=batch.start,
            stop=batch.stop,
            fingerprint=batch.fingerprint,
            rejected=None,
            rows={"total": rows, "accepted": rows, "rejected": 0, "by_verdict": {"complete": rows}},
            tokens={"prompt": 100, "output": 900},
            resolved_sha256=sha256_hex(canonical(RESOLVED)),
            template_sha256="t",
            **files,
        )
        ledger.commit(receipt)
    return len(batches)


def resume(folder: Path) -> int:
    """Start again when all is done: read the plan, look for new prompts, list what is pending."""
    spec, _, ledger = job_of(folder)
    grown = extend_plan(ledger, open_sources(spec.prompts), spec, "r")
    assert not ledger.pending(grown)
    return len(grown.batches)


def status(folder: Path) -> int:
    """Read and add up every receipt, and see that its files are there: `rawseq status`."""
    from deployments.cli.verbs.status import describe  # with all that the verb loads: not the ledger's memory

    answer = describe(job_of(folder)[1])
    assert answer["state"] == "complete"
    return int(answer["batches"]["committed"])


def peak_mb() -> float:
    """Return this process's largest memory so far; `ru_maxrss` would count its parent's before the start."""
    status = Path("/proc/self/status")
    if not status.exists():  # not Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
    assert found is not None
    return int(found[1]) / 1024


def write_questions(path: Path, rows: int) -> None:
    """Write so many numbered prompts of about 200 bytes."""
    with path.open("wb") as file:
        for first in range(0, rows, 10_000):
            numbers = range(first, min(rows, first + 10_000))
            file.write(b"".join(b'{"id":"q%d","prompt":"%d: %s"}\n' % (n, n, b"Why? " * 35) for n in numbers))


def in_child(phase: str, folder: Path) -> dict[str, float]:
    """Run one phase in a process of its own."""
    command = [sys.executable, __file__, "--phase", phase, "--root", str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    value: dict[str, float] = json.loads(done.stdout)
    return value


def one_phase(phase: str, folder: Path) -> None:
    """Run a phase here and print its time, peak memory and number of batches."""
    start, cpu = time.perf_counter(), time.process_time()
    batches = {"plan": plan, "commit": commit, "resume": resume, "status": status}[phase](folder)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu, "peak_mb": peak_mb(), "batches": batches}))


def measure(sizes: Iterable[int], root: Path) -> list[dict[str, Any]]:
    """Return one result per size and phase."""
    results = []
    for rows in sizes:
        folder = Path(tempfile.mkdtemp(prefix="rawseq-ledger-", dir=root))
        try:
            write_questions(folder / "questions.jsonl", rows)
            results += [{"rows": rows, "phase": phase} | in_child(phase, folder) for phase in PHASES]
        finally:
            shutil.rmtree(folder)
    return results


def table(results: list[dict[str, Any]]) -> str:
    """Return a Markdown table: seconds, CPU a row and peak memory, with ratios to the first size."""
    first = {r["phase"]: r for r in results if r["rows"] == results[0]["rows"]}
    head = "| phase | rows | batches | seconds | CPU µs/row (ratio) | peak MB (ratio) |"
    lines = [head, "|---|---|---|---|---|---|"]
    for r in sorted(results, key=lambda r: (PHASES.index(r["phase"]), r["rows"])):
        base = first[r["phase"]]
        cost, base_cost = r["cpu_seconds"] / r["rows"] * 1e6, base["cpu_seconds"] / base["rows"] * 1e6
        lines.append(
            f"| {r['phase']} | {r['rows']:,} | {r['batches']:,} | {r['seconds']:.2f} | {cost:.2f} "
            f"({cost / base_cost:.2f}) | {r['peak_mb']:.0f} ({r['peak_mb'] / base['peak_mb']:.2f}) |"
        )
    return "\n".join(lines)


def main() -> None:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--root", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--phase", choices=PHASES)
    arguments = parser.parse_args()
    if arguments.phase:
        one_phase(arguments.phase, arguments.root)
        return
    results = measure(arguments.sizes, arguments.root)
    print(table(results))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
