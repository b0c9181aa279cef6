"""One client against one server, in a process of its own: its CPU, its wall time, its memory.

Run: python -m tests.bench.client NAME --url URL --load JSON --rows N --window N
"""

import argparse
import json
import resource
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import uvloop

from tasks.run.collector import seldom_collected
from tests.bench.load import Load, batch_turns, read_load, records
from tests.bench.ours import Hot, journal_folder
from tests.bench.raw_client import raw_protocol
from tests.bench.rivals import RIVALS, Work

OURS = {"rawseq dispatch": "dispatch", "rawseq + journal": "journal", "rawseq whole": "whole"}
"""How much of our own path is on, by name in the tables."""


SLOW = ("httpx", "AsyncOpenAI", "SpecForge-like", "threads+requests")


def rival(name: str) -> Callable[[Work], Awaitable[int]]:
    """Return a client; the slow ones are imported only here, so that their modules count to them alone."""
    if name in SLOW:
        from tests.bench.slow_rivals import SLOW as clients

        return clients[name]
    return raw_protocol if name == "raw protocol" else RIVALS[name]


async def measure_rival(name: str, url: str, load: Load, rows: int, window: int) -> dict[str, Any]:
    """Time one rival; its rows are rendered and its modules loaded before the clock starts."""
    work = Work(url, batch_turns(load, rows).open({})[0], records(load, rows), window)
    client = rival(name)
    begun, cpu = time.perf_counter(), time.process_time()
    done = await client(work)
    return _account(done, time.perf_counter() - begun, time.process_time() - cpu)


async def measure_ours(name: str, url: str, load: Load, rows: int, window: int) -> dict[str, Any]:
    """Time our own path; probing the servers is not counted, making rows is."""
    with journal_folder() as folder, ExitStack() as stack:
        hot = Hot(load, rows, OURS[name], Path(folder))
        async with hot.fleet(url, window or None) as fleet:
            await fleet.ensure()
            stack.enter_context(seldom_collected())  # as a run does when it opens
            begun, cpu = time.perf_counter(), time.process_time()
            await hot.run(fleet)
            account = _account(rows, time.perf_counter() - begun, time.process_time() - cpu)
        hot.close()
    if OURS[name] == "whole" and hot.accepted != rows:
        raise AssertionError(f"expected {rows} accepted rows, got {hot.accepted}")
    return account


def _account(rows: int, wall: float, cpu: float) -> dict[str, Any]:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"rows": rows, "wall_seconds": wall, "cpu_seconds": cpu, "peak_mb": peak}


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=[*OURS, *RIVALS, *SLOW, "raw protocol"])
    parser.add_argument("--url", required=True)
    parser.add_argument("--load", default="{}")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--window", type=int, default=256, help="0: what the server tells")
    args = parser.parse_args()
    measure = measure_ours if args.name in OURS else measure_rival
    load = read_load(args.load)
    print(json.dumps(uvloop.run(measure(args.name, args.url, load, args.rows, args.window))))


if __name__ == "__main__":
    main()
