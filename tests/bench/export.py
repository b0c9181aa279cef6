"""Exports at size: peak memory and speed of 100 MB and 1 GB of JSON lines, of the same rows in other formats.

    python tests/bench/export.py [--megabytes 100 1000] [--to specforge speculators-arrow parquet]

Every export runs in a process of its own, so that its peak memory is its own. Prints a table, and one JSON
object as its last line; fails if the largest export took a quarter more memory than the smallest.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tasks.export.export import export
from tasks.export.options import ExportOptions
from tasks.job.spec import StoreSpec
from tasks.ledger.ledger import Ledger
from tasks.rows.records import CheckedBatch, Completion, Ragged, Segment, Verdict
from tasks.store.opening import find_job
from tests.support.stores import RESOLVED, commit_checked, folder_store, make_store

ROWS, IDS = 250, 4096
"""A batch of a thinking model: about a million ids."""

BYTES_PER_ID = 8.3
"""JSON text of an id below 150,000 and of its mask entry."""

RESOLVED_LARGE = RESOLVED | {"tokenizer": RESOLVED["tokenizer"] | {"size": 151_000}}


def build(folder: Path, megabytes: int) -> None:
    """Commit a dataset whose JSON lines take about so many megabytes; all rows differ."""
    ids = np.random.default_rng(megabytes).integers(1000, 150_000, (ROWS, IDS)).astype(np.int32)
    ledger_store = make_store(folder, [], resolved=RESOLVED_LARGE)
    ledger = Ledger(ledger_store, str(Ledger(ledger_store, "").job()["job_id"]))
    for number in range(max(1, round(megabytes * 1e6 / (ROWS * IDS * BYTES_PER_ID)))):
        commit_checked(ledger, batch_of(number, (ids + number) % 150_000), number * ROWS)


def batch_of(number: int, ids: np.ndarray) -> CheckedBatch:
    """Return a batch of int32[ROWS, IDS]: 500 ids of prompt, 2,500 of reasoning, then content."""
    names = tuple(f"s:b{number}r{row}#t0~s0" for row in range(ROWS))
    segments = (Segment("prompt", 0, 500), Segment("reasoning", 500, 3000), Segment("content", 3000, IDS))
    none = np.zeros(ROWS, np.int16)
    return CheckedBatch(
        batch=number,
        row_ids=names,
        inputs=Ragged.from_rows(list(ids[:, :500])),
        outputs=Ragged.from_rows(list(ids[:, 500:])),
        verdicts=(Verdict("complete", -1, segments),) * ROWS,
        accepted=np.ones(ROWS, np.bool_),
        completions=tuple(
            Completion(name, row[:500], row[500:], "stop", int(row[-1]))
            for name, row in zip(names, ids, strict=True)
        ),
        turns=none,
        samples=none,
        metadata=("{}",) * ROWS,
    )


def peak_mb() -> int:
    """Return this process's peak memory since it was started; `ru_maxrss` would begin with its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return round(int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024)


def measured(store: Path, out: Path, to: str) -> dict[str, Any]:
    """Export in this process and return what it took."""
    start = time.monotonic()
    report = export([find_job(StoreSpec(uri=str(store)))], [1.0], ExportOptions(to=to), folder_store(out))  # type: ignore[arg-type]
    size = sum(entry["bytes"] for entry in report["files"])
    return {
        "seconds": round(time.monotonic() - start, 1),
        "cpu_seconds": round(time.process_time(), 1),
        "peak_mb": peak_mb(),
        "output_mb": round(size / 1e6),
        "ids": report["tokens"]["train"],
    }


def main() -> int:
    """Measure every size and format."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--to", nargs="+", default=["specforge", "speculators-arrow", "parquet"])
    parser.add_argument("--one", nargs=3, metavar=("STORE", "OUT", "FORMAT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        store, out, to = args.one
        print(json.dumps(measured(Path(store), Path(out), to)))
        return 0
    found: dict[str, dict[int, Any]] = {to: {} for to in args.to}
    for megabytes in args.megabytes:
        with tempfile.TemporaryDirectory() as folder:
            build(Path(folder) / "store", megabytes)
            for to in args.to:
                command = [sys.executable, __file__, "--one", f"{folder}/store", f"{folder}/{to}", to]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                row = found[to][megabytes] = json.loads(done.stdout.splitlines()[-1])
                print(f"{to:>18} {megabytes:>6} MB asked", row, flush=True)
    print(json.dumps(found))
    peaks = [[row["peak_mb"] for row in sizes.values()] for sizes in found.values()]
    return 0 if all(max(row) <= 1.25 * min(row) for row in peaks) else 1


if __name__ == "__main__":
    sys.exit(main())
