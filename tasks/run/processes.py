"""Processes that render prompts: started together, replaced when one dies, gone when this process is.

Each is spawned (a fork under running threads may hang), loads the job's tokenizer once and proves it.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, ParamSpec, TypeVar

import attrs

from tasks.errors import IdentityError, LaterError
from tasks.grammar.grammar import Grammar, discover_grammar
from tasks.job.spec import ModelSpec
from tasks.tokenizer.vocabulary import Vocabulary, load_vocabulary
from tasks.turns.mix import read_mix
from tasks.turns.next_turn import Step, TurnRules, Work, next_step

DEATHS = 3
"""How often the work of processes that died is begun again before it fails."""

P = ParamSpec("P")
T = TypeVar("T")

_SPAWN = get_context("spawn")


@attrs.frozen(slots=True, eq=False)
class Knowledge:
    """What a process loads before it can render.

    Args:
        model: the job's.
        mix: `sampling.mix`: its template arguments have tails of their own.
        account: of the tokenizer that the run has proved (`Vocabulary.describe`): each must find the same.
    """

    model: ModelSpec
    mix: tuple[dict[str, Any], ...]
    account: dict[str, Any]


class Processes:
    """A pool of renderers.

    Args:
        knowledge: what each of them loads.
        count: how many.
    """

    def __init__(self, knowledge: Knowledge, count: int) -> None:
        self.count = count
        self._knowledge = knowledge
        self._pool: asyncio.Task[_Pool] | None = None

    def start(self) -> None:
        """Begin to start the processes, if nobody has; nothing is waited for."""
        if self._pool is None:
            self._pool = asyncio.create_task(asyncio.to_thread(_Pool, self._knowledge, self.count))

    @property
    def ready(self) -> bool:
        """Whether one of them could take work at once."""
        return self._pool is not None and self._pool.done() and self._pool.result().ready

    async def run(self, rules: TurnRules, works: Sequence[Work]) -> list[Step]:
        """Let one of them take these conversations a step further.

        Raises:
            LaterError: the processes die again and again.
            IdentityError: the tokenizer's files are not those any more that this run has proved.
        """
        for _ in range(DEATHS):
            self.start()
            begun = self._pool
            assert begun is not None
            pool = await asyncio.shield(begun)
            try:
                return await asyncio.wrap_future(pool.submit(_steps, rules, works))
            except BrokenProcessPool:
                if self._pool is begun:  # the first to see it
                    self._pool = None
                    await asyncio.to_thread(pool.close)
        raise LaterError(
            f"batch.render_processes: processes that render prompts died {DEATHS} times, killed by something "
            f"outside (out of memory?): expected {self.count} to stay; 0 renders on a thread instead"
        )

    async def close(self) -> None:
        """End the processes, whatever they are at."""
        if self._pool is not None:
            pool = await self._pool
            await asyncio.to_thread(pool.close)


class _Pool:
    """Processes that were started together. Blocking.

    They hold one end of a pipe whose other end is only here. When that closes, because we close it or because
    this process was killed, they exit, whatever they are at: an executor alone would leave them waiting for
    work for ever after a SIGKILL.
    """

    def __init__(self, knowledge: Knowledge, count: int) -> None:
        self._theirs, self._ours = _SPAWN.Pipe(duplex=False)
        self._executor = ProcessPoolExecutor(count, _SPAWN, _begin, (knowledge, self._theirs))
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # they inherit it: Ctrl-C is for us
        try:
            self._loads = [self.submit(_load) for _ in range(count)]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    @property
    def ready(self) -> bool:
        """Whether one of them has loaded what it needs, or failed to."""
        return any(load.done() for load in self._loads)

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Let one of them make a call."""
        return self._executor.submit(call, *args, **kwargs)

    def close(self) -> None:
        """End them."""
        self._ours.close()
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._theirs.close()


_known: list[Knowledge] = []
"""In a process of a pool: what it loads."""


def _begin(knowledge: Knowledge, alive: Connection) -> None:
    """Begin a process: note what it loads, and end it when the other end of `alive` closes."""
    _known.append(knowledge)
    threading.Thread(target=_end_with, args=(alive,), daemon=True).start()


def _end_with(alive: Connection) -> None:
    alive.poll(None)
    os._exit(1)


@lru_cache(maxsize=1)
def _loaded() -> tuple[Vocabulary, Grammar]:
    knowledge = _known[0]
    vocabulary = load_vocabulary(knowledge.model)
    if vocabulary.describe() != knowledge.account:
        raise IdentityError(
            f"model.tokenizer: its files have changed since the run began: expected {knowledge.account}, "
            f"got {vocabulary.describe()}"
        )
    return vocabulary, discover_grammar(vocabulary, [mix.template_args for mix in read_mix(knowledge.mix)])


def _load() -> None:
    _loaded()


def _steps(rules: TurnRules, works: Sequence[Work]) -> list[Step]:
    return [next_step(*_loaded(), rules, work) for work in works]
