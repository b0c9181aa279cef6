"""What durability costs a journal: rows a second and syncs a second, as ratios to writing without any sync.

    python tests/bench/journal.py [--rows 2000] [--rounds 5] [--root FOLDER]

A row is 500 prompt ids and 2,048 output ids (10 kB). Rows are appended as fast as they are taken, and the
clock stops when all are on disk. The ways take turns, round by round. Prints a table, and one JSON object as
its last line. A tmpfs root shows the cost of everything but the disk.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from tasks.ledger import journal_writer
from tasks.ledger.batch import Batch
from tasks.ledger.frames import completion_frame
from tasks.ledger.journal import Journal
from tasks.rows.records import Completion

DEFAULT = (journal_writer.SYNC_SECONDS, journal_writer.SYNC_BYTES)
GROUPS = {
    "rawseq, every 2 s or 64 MB": (2.0, 64 * 2**20),
    f"rawseq, every {DEFAULT[0]} s or {DEFAULT[1] >> 20} MB (as shipped)": DEFAULT,
    "rawseq, every 0.05 s or 1 MB": (0.05, 2**20),
}
PLAIN = {"plain file, no sync": False, "plain file, a sync per row": True}
BASE = "plain file, no sync"


def rows_of(count: int) -> list[Completion]:
    """Return so many made-up answers."""
    dice = np.random.default_rng(0)
    ids = [dice.integers(0, 2**17, 2548, np.int32) for _ in range(count)]
    facts = {"server": "http://127.0.0.1:1", "rid": "0" * 32}
    return [
        Completion(f"s:{n}#t0~s0", row[:500], row[500:], "stop", 1, facts=facts) for n, row in enumerate(ids)
    ]


@contextmanager
def counted_syncs() -> Iterator[list[int]]:
    """Count the calls of `fdatasync` while the body runs."""
    real, calls = os.fdatasync, [0]

    def counting(descriptor: int) -> None:
        calls[0] += 1
        real(descriptor)

    os.fdatasync = counting
    try:
        yield calls
    finally:
        os.fdatasync = real


def plain(folder: Path, rows: list[Completion], *, sync: bool) -> None:
    """Append frames to a file, each with a sync of its own or none at all."""
    with (folder / "plain").open("wb", buffering=0) as file:
        for row in rows:
            file.write(completion_frame(row))
            if sync:
                os.fdatasync(file.fileno())


def grouped(folder: Path, rows: list[Completion], limits: tuple[float, int]) -> None:
    """Append to a journal whose writer syncs after so many seconds or bytes; return when all is on disk."""
    journal_writer.SYNC_SECONDS, journal_writer.SYNC_BYTES = limits  # type: ignore[misc]
    with Journal.open(folder / "journal", "job", Batch(0, 0, len(rows), "f" * 64, ()), "run") as journal:
        for row in rows:
            journal.append(row)
        journal.flush()


def ways() -> dict[str, Callable[[Path, list[Completion]], None]]:
    """Return every way by name."""
    found: dict[str, Callable[[Path, list[Completion]], None]] = {
        name: partial(plain, sync=sync) for name, sync in PLAIN.items()
    }
    return found | {name: partial(grouped, limits=limits) for name, limits in GROUPS.items()}


def measure(count: int, rounds: int, root: Path) -> dict[str, dict[str, float]]:
    """Return rows a second, syncs a second and rows a sync of every way: medians over the rounds."""
    rows = rows_of(count)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ways()}
    for number in range(rounds):
        order = list(ways().items())
        for name, way in order if number % 2 == 0 else reversed(order):
            with tempfile.TemporaryDirectory(dir=root) as folder, counted_syncs() as calls:
                start = time.perf_counter()
                way(Path(folder), rows)
                seconds = time.perf_counter() - start
            found[name].append({"rows_per_second": count / seconds, "syncs_per_second": calls[0] / seconds})
    return {
        name: {key: median(figure[key] for figure in figures) for key in figures[0]}
        for name, figures in found.items()
    }


def table(result: dict[str, dict[str, float]]) -> str:
    """Return a Markdown table."""
    base = result[BASE]["rows_per_second"]
    lines = ["| way | rows/s over no sync | rows/s | syncs/s |", "|---|---|---|---|"]
    for name, figures in result.items():
        speed = figures["rows_per_second"]
        lines.append(
            f"| {name} | **{speed / base:.3f}** | {speed:,.0f} | {figures['syncs_per_second']:,.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--root", type=Path, default=Path(tempfile.gettempdir()))
    arguments = parser.parse_args()
    result = measure(arguments.rows, arguments.rounds, arguments.root)
    print(table(result))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
