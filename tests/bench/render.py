"""How fast prompts are rendered, and how long the event loop stands still meanwhile.

Run: python -m tests.bench.render [--rows N] [--words N] [--processes 0 1 2] [--rounds N]

`loop` renders on the event loop itself, which nothing in rawseq does; 0 is a thread, then so many processes.
Rounds are interleaved, so that a machine that slows down slows all ways; the best of each counts. The CPU
time that a row costs this process, the one with the event loop, bounds how many rows a second a run can send.
Prints one JSON object a way.
"""

import argparse
import asyncio
import json
import random
import time
from contextlib import AsyncExitStack
from pathlib import Path

from tasks.grammar.grammar import Grammar, discover_grammar
from tasks.job.spec import ModelSpec, SamplingSpec
from tasks.rows.lengths import LengthLimits
from tasks.run.processes import Knowledge
from tasks.run.rendering import Renderers
from tasks.tokenizer.vocabulary import Vocabulary, load_vocabulary
from tasks.turns.conversations import plan_conversations
from tasks.turns.next_turn import TurnRules, Work, next_step
from tasks.turns.sampling import resolve_sampling
from tests.support.model_folders import STANDIN
from tests.tasks.turns.test_turns import Record, said, user

TICK_SECONDS = 0.001


def works_of(rows: int, words: int) -> list[Work]:
    """Return prompts with a history of two turns, seeded; `words` in each message."""
    dice = random.Random(0)
    vocabulary = Path(__file__).read_text().split()

    def text() -> str:
        return " ".join(dice.choices(vocabulary, k=words))

    records = [
        Record((user(text()), said(text()), user(text()), said(text()), user(text())), str(number))
        for number in range(rows)
    ]
    return [Work(conversation) for conversation in plan_conversations(records, "last", 1)]


class Stall:
    """Watches the event loop: how late it was at most, in seconds, to wake what asked for `TICK_SECONDS`."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._task = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = time.perf_counter()
            self.longest, last = max(self.longest, now - last - TICK_SECONDS), now

    async def ended(self) -> float:
        """Return the longest stall."""
        await asyncio.sleep(2 * TICK_SECONDS)  # so that the last one is seen
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        return self.longest


class OnTheLoop:
    """What must not be: every prompt rendered by the loop's own thread."""

    def __init__(self, vocabulary: Vocabulary, grammar: Grammar) -> None:
        self._known = vocabulary, grammar

    async def run(self, rules: TurnRules, works: list[Work]) -> None:
        """Render all."""
        for work in works:
            next_step(*self._known, rules, work)


async def measure(rows: int, words: int, processes: list[int], rounds: int) -> list[dict[str, float | str]]:
    """Return per way rows a second, this process's CPU time a row, the longest stall: each at its best."""
    model = ModelSpec(tokenizer=str(STANDIN))
    vocabulary = load_vocabulary(model)
    grammar = discover_grammar(vocabulary)
    rules = TurnRules(resolve_sampling(SamplingSpec(), vocabulary, grammar), LengthLimits())
    works = works_of(rows, words)
    knowledge = Knowledge(model, (), vocabulary.describe())
    async with AsyncExitStack() as stack:
        ways: dict[str, OnTheLoop | Renderers] = {"loop": OnTheLoop(vocabulary, grammar)}
        for count in processes:
            renderers = Renderers(vocabulary, grammar, knowledge, count)
            ways[str(count)] = await stack.enter_async_context(renderers)
            await renderers.run(rules, works[: 64 * max(1, count)])  # their start is not measured
        times: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                stall, started, cpu = Stall(), time.perf_counter(), time.process_time()
                await asyncio.sleep(0)  # so that it watches
                await way.run(rules, works)
                seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
                times[name].append((seconds, cpu, await stall.ended()))
    best = {name: [min(column) for column in zip(*rounds, strict=True)] for name, rounds in times.items()}
    return [
        {
            "way": name,
            "rows_per_second": rows / seconds,
            "ratio_to_thread": best.get("0", best["loop"])[0] / seconds,
            "own_cpu_milliseconds_a_row": 1000 * cpu / rows,
            "longest_stall_milliseconds": 1000 * stall,
        }
        for name, (seconds, cpu, stall) in best.items()
    ]


def main() -> None:
    """Print one JSON object a way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--words", type=int, default=100)
    parser.add_argument("--processes", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    for way in asyncio.run(measure(args.rows, args.words, args.processes, args.rounds)):
        print(json.dumps(way))


if __name__ == "__main__":
    main()
