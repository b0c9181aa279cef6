"""Whether servers idle: makespans on a long-tail load, over the least possible and a simulated greedy client.

The stub serves `slots` rows at once, each for a time drawn from a log-normal by its prompt. The bound is
max(sum / slots, longest): no schedule is shorter. `greedy` is what a client without any delay would reach
with rows in the same order; what lies between greedy and the bound is the load's tail, not the client.

Run: python -m tests.bench.schedule [--slots N] [--per-slot N] [--rounds N] [--json FILE]
"""

import argparse
import heapq
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import attrs
import orjson
import uvloop

from tests.bench.load import Load, batch_turns
from tests.bench.ours import Hot
from tests.bench.rivals import RIVALS, Work
from tests.bench.rounds import begin, counters, machine, stub, table
from tests.bench.stub import encode_replies, kind_of

SERVICE = "lognormal:{median}:0.8:{cap}"
"""Reply lengths of a reasoning model as measured: sigma 0.8, the cap eight medians."""


def long_tail(slots: int, median: float, told: int | None = None) -> Load:
    """Return the load: short bodies, long-tail times."""
    service = SERVICE.format(median=median, cap=8 * median)
    return Load("fixed:64", service, slots, slots if told is None else told, prompt=30)


def times_of(load: Load, rows: int) -> list[float]:
    """Return each row's service time in seconds, in the order in which rows are sent."""
    replies = encode_replies(load)
    requests = batch_turns(load, rows).open({})[0]
    option = orjson.OPT_SERIALIZE_NUMPY
    return [
        replies[kind_of(orjson.dumps({"input_ids": request.input_ids}, option=option))].seconds
        for request in requests
    ]


def greedy(times: list[float], slots: list[float]) -> float:
    """Return the makespan of list scheduling: the next row goes to the slot that is free first.

    Args:
        times: service times in order.
        slots: speed of each slot, 1.0 as drawn.
    """
    free = [(0.0, number) for number in range(len(slots))]
    for seconds in times:
        at, number = heapq.heappop(free)
        heapq.heappush(free, (at + seconds / slots[number], number))
    return max(at for at, _ in free)


async def _ours(urls: list[str], load: Load, rows: int, window: int | None) -> float:
    with tempfile.TemporaryDirectory(prefix="rawseq-bench-") as folder:
        hot = Hot(load, rows, "journal", Path(folder))
        async with hot.fleet(",".join(urls), window) as fleet:
            await fleet.ensure()
            for url in urls:
                begin(url)
            begun = time.perf_counter()
            await hot.run(fleet)
            seconds = time.perf_counter() - begun
        hot.close()
    return seconds


async def _rival(name: str, url: str, load: Load, rows: int) -> float:
    work = Work(url, batch_turns(load, rows).open({})[0], [], load.slots)
    begun = time.perf_counter()
    await RIVALS[name](work)
    return time.perf_counter() - begun


def one_server(slots: int, per_slot: int, rounds: int, median: float) -> list[dict[str, Any]]:
    """Return makespans over bound and greedy: rawseq told and not told the slots, and barriers."""
    rows = slots * per_slot
    load = long_tail(slots, median)
    times = times_of(load, rows)
    bound, best = max(sum(times) / slots, max(times)), greedy(times, [1.0] * slots)
    untold, overtold = attrs.evolve(load, told=0), attrs.evolve(load, told=4096)
    clients = {
        "rawseq, window from the server": lambda url: _ours([url], load, rows, None),
        "rawseq, window begins at half": lambda url: _ours([url], load, rows, slots // 2),
        "rawseq, server does not tell": lambda url: _ours([url], untold, rows, None),
        "rawseq, server tells 4,096": lambda url: _ours([url], overtold, rows, None),
        "bare pool (knows the slots)": lambda url: _rival("bare", url, load, rows),
        "barrier per window": lambda url: _rival("barrier", url, load, rows),
        "barrier per 4 windows": lambda url: _rival("barrier4", url, load, rows),
    }
    made: dict[str, list[tuple[float, float, int]]] = {name: [] for name in clients}
    for number in range(rounds):
        for name, client in clients.items():
            print(f"round {number + 1}/{rounds}: {name}", file=sys.stderr, flush=True)
            tells = untold if "does not tell" in name else overtold if "4,096" in name else load
            with stub(tells) as url:
                seconds = uvloop.run(client(url))
                after = counters(url)
            busy = after["busy_seconds"] / (slots * seconds)
            made[name].append((seconds, busy, after["most_waiting"]))
    return [
        {
            "client": name,
            "over_bound": statistics.median(s for s, _, _ in runs) / bound,
            "over_greedy": statistics.median(s for s, _, _ in runs) / best,
            "busy_share": statistics.median(b for _, b, _ in runs),
            "most_waiting": statistics.median(w for _, _, w in runs),
        }
        for name, runs in made.items()
    ]


def two_speeds(
    slots: int, per_slot: int, rounds: int, median: float, times_slower: int = 4
) -> dict[str, Any]:
    """Return how well a fast and a slow server are used together.

    In the ideal split no slot is idle before the last row is started. A server is looked at until its own
    last row was started: a long row that the slow one began late is nobody's fault.
    """
    rows = slots * per_slot
    fast, slow = long_tail(slots, median), long_tail(slots, median * times_slower)
    shares, split = [], []
    for _ in range(rounds):
        with stub(fast) as one, stub(slow) as other:
            uvloop.run(_ours([one, other], fast, rows, None))
            seen = [counters(one), counters(other)]
        shares.append([each["filled_busy"] / (slots * each["filled_seconds"]) for each in seen])
        split.append(seen[0]["requests"] / seen[1]["requests"])
    of_ideal = [(times_slower * quick + late) / (times_slower + 1) for quick, late in shares]
    return {
        "of_ideal_split": statistics.median(of_ideal),
        "busy_share_fast": statistics.median(quick for quick, _ in shares),
        "busy_share_slow": statistics.median(late for _, late in shares),
        "rows_fast_over_slow": statistics.median(split),
        "times_slower": times_slower,
    }


def shown(result: dict[str, Any]) -> str:
    """Return the tables."""
    lines = [
        [
            line["client"],
            f"**{line['over_bound']:.3f}**",
            f"{line['over_greedy']:.3f}",
            f"{line['busy_share']:.3f}",
            f"{line.get('most_waiting', '-')}",
        ]
        for line in result["one_server"]
    ]
    two = result["two_speeds"]
    speeds = [
        ["of the ideal split: slots busy until the last row starts", f"**{two['of_ideal_split']:.3f}**"],
        ["slots busy on the fast one", f"{two['busy_share_fast']:.3f}"],
        ["slots busy on the slow one", f"{two['busy_share_slow']:.3f}"],
        ["rows on the fast over rows on the slow one", f"{two['rows_fast_over_slow']:.2f}"],
    ]
    head = ["client", "makespan / bound", "makespan / greedy", "busy share of slots", "most rows waiting"]
    return table(head, lines) + "\n\n" + table([f"two servers, {two['times_slower']}:1", "value"], speeds)


def measure(slots: int, per_slot: int, rounds: int, median: float) -> dict[str, Any]:
    """Return both tables' figures."""
    return {
        "machine": machine(),
        "slots": slots,
        "rows_per_slot": per_slot,
        "one_server": one_server(slots, per_slot, rounds, median),
        "two_speeds": two_speeds(slots, per_slot, rounds, median),
    }


def main() -> None:
    """Print the tables; write the figures beside them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--per-slot", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--median", type=float, default=0.2, help="seconds")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result = measure(args.slots, args.per_slot, args.rounds, args.median)
    print(shown(result))
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
