"""Where prompts are rendered: on a thread, or in processes of their own. Never on the event loop.

A process costs seconds to start, so a small job never has one: only when rendering on the thread has taken as
long as a start does are processes started, and the thread goes on until one of them is ready.
"""

import asyncio
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from tasks.grammar.grammar import Grammar
from tasks.run.processes import Knowledge, Processes
from tasks.tokenizer.vocabulary import Vocabulary
from tasks.turns.next_turn import Step, TurnRules, Work, next_step

START_SECONDS = 5.0
"""What a process costs before its first prompt: Python, transformers, the guard (4 to 6 s of CPU)."""

MOST_PROCESSES = 4
"""Unless a job names a number. One renders hundreds of prompts a second; few fleets are faster than four."""

AT_ONCE = 16
"""Conversations taken on together: handing them over costs about as much as rendering one short prompt."""


class Renderers:
    """Takes conversations a step further, off the event loop. An async context manager.

    Args:
        vocabulary: the job's.
        grammar: the job's.
        knowledge: how a process gets both.
        processes: how many; 0: none; None: none until they pay, then one per further core.
    """

    def __init__(
        self, vocabulary: Vocabulary, grammar: Grammar, knowledge: Knowledge, processes: int | None = None
    ) -> None:
        spare = min(MOST_PROCESSES, (os.cpu_count() or 1) - 1)
        self._vocabulary, self._grammar = vocabulary, grammar
        self._processes = Processes(knowledge, spare if processes is None else processes)
        self._named = processes is not None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rawseq-render")
        self._seconds = 0.0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._processes.close()
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)

    async def run(self, rules: TurnRules, works: Sequence[Work]) -> list[Step]:
        """Take each conversation a step further; the steps come in the order of `works`.

        Raises:
            LaterError: the processes die again and again.
            IdentityError: the tokenizer's files are not those any more that this run has proved.
        """
        steps: list[Step] = []
        while len(steps) < len(works):
            rest = works[len(steps) :]
            if self._in_processes():
                parts = [rest[at : at + AT_ONCE] for at in range(0, len(rest), AT_ONCE)]
                for part in await asyncio.gather(*(self._processes.run(rules, part) for part in parts)):
                    steps += part
            else:
                steps += await self._on_thread(rules, rest[:AT_ONCE])
        return steps

    def _in_processes(self) -> bool:
        """Whether processes do it now; a job that names their number waits for their start."""
        if self._processes.count == 0 or (not self._named and self._seconds < START_SECONDS):
            return False
        self._processes.start()
        return self._named or self._processes.ready

    async def _on_thread(self, rules: TurnRules, works: Sequence[Work]) -> list[Step]:
        loop = asyncio.get_running_loop()
        steps, seconds = await loop.run_in_executor(self._thread, self._timed, rules, works)
        self._seconds += seconds
        return steps

    def _timed(self, rules: TurnRules, works: Sequence[Work]) -> tuple[list[Step], float]:
        started = time.thread_time()
        steps = [next_step(self._vocabulary, self._grammar, rules, work) for work in works]
        return steps, time.thread_time() - started
