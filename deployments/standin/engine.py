"""The decoder's thread: waiting queue, slots, one step after another."""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from deployments.standin.counters import Counters
from deployments.standin.generation import Generation
from deployments.standin.stepper import Picked, Stepper
from deployments.standin.stopping import finish_reason

logger = logging.getLogger("standin")

ABORTED: dict[str, Any] = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
ABORTED_WAITING: dict[str, Any] = {"type": "abort", "message": "Abort in waiting queue"}
STEPS_PER_LOAD = 15  # --load-snapshot-publish-interval of a genuine server


class QueueFullError(Exception):
    """The waiting queue has reached --max-queued-requests."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much runs and waits at once."""

    running: int
    queued: int | None
    pool: int  # cache positions of all running generations together


@dataclass(frozen=True, slots=True)
class Load:
    """A snapshot of the work."""

    stamp: float
    running: int
    waiting: int
    tokens: int  # of all that run


class Engine:
    """Owns the network; everything public may be called from any thread."""

    def __init__(
        self,
        stepper: Stepper,
        tokenizer: Tokenizer,
        limits: Limits,
        counters: Counters,
        deliver: Callable[[list[Generation]], None],
    ) -> None:
        """`deliver` is called on the engine's thread with the generations that changed in a step."""
        self.stepper, self.limits = stepper, limits
        self._tokenizer, self._counters, self._deliver = tokenizer, counters, deliver
        self._wake = threading.Condition()
        self._waiting: deque[Generation] = deque()
        self._slots: list[Generation | None] = [None] * stepper.slots
        self._ended: list[Generation] = []  # by abort; delivered with the next step
        self._paused = self._stopping = self.frozen = False
        self._steps = 0  # since the last snapshot
        self.clock_ahead = 0.0  # seconds that the snapshots' times are ahead
        self._load = self._look()
        self.throughput = 0.0  # ids per second of the last steps
        self._thread = threading.Thread(target=self._run, name="standin-decoder", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its step."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    def submit(self, generations: list[Generation]) -> None:
        """Queue generations; raises QueueFullError, queueing none, if they do not all fit."""
        with self._wake:
            limit = self.limits.queued
            if limit is not None and len(self._waiting) + len(generations) > limit + self._free():
                raise QueueFullError
            if not self._busy and not self.frozen:
                self._load = self._look()
            self._waiting.extend(generations)
            self._wake.notify()

    def abort(self, matches: Callable[[str], bool]) -> None:
        """End every generation whose rid matches, running or waiting."""
        with self._wake:
            for generation in [g for g in self._waiting if matches(g.rid)]:
                self._waiting.remove(generation)
                self._end(generation, ABORTED_WAITING if not generation.output else ABORTED)
            for slot, held in enumerate(self._slots):
                if held is not None and held.finish is None and matches(held.rid):
                    self._slots[slot] = None
                    self._end(held, ABORTED)
            self._wake.notify()

    def pause(self, mode: str) -> None:
        """Stop: `abort` ends what runs, `retract` sends it back to the queue, `in_place` keeps it."""
        if mode == "abort":
            self.abort(lambda _: True)
        with self._wake:
            self._paused = True
            running = [g for g in self._slots if g is not None]
            if mode == "retract":
                self._slots = [None] * len(self._slots)
                for generation in reversed(running):
                    generation.retractions += 1
                    self._waiting.appendleft(generation)

    def resume(self) -> None:
        """Go on after a pause."""
        with self._wake:
            self._paused = False
            self._wake.notify()

    def freeze(self, frozen: bool) -> None:
        """Stand still (or go on) without telling anybody: a scheduler that hangs."""
        with self._wake:
            self._load = self.load()
            self.frozen = frozen
            self._wake.notify()

    @property
    def paused(self) -> bool:
        """Whether a pause is on."""
        return self._paused

    def running(self) -> list[Generation]:
        """What holds a slot."""
        return [g for g in list(self._slots) if g is not None]

    def waiting(self) -> int:
        """How many wait for a slot."""
        return len(self._waiting)

    def load(self) -> Load:
        """The snapshot that /v1/loads tells of.

        It is renewed after an admission and every few steps, as genuine; idle or paused it is always new.
        A frozen decoder's stands still with it.
        """
        if not self.frozen and (self._paused or not self._busy):
            self._load = self._look()
        return self._load

    def _look(self) -> Load:
        running = self.running()
        tokens = sum(len(g.prompt) + len(g.output) for g in running)
        return Load(time.time() + self.clock_ahead, len(running), len(self._waiting), tokens)

    @property
    def _busy(self) -> bool:
        return bool(self._waiting or self.running())

    def _free(self) -> int:
        return max(0, self.limits.running - len(self.running()))

    def _end(self, generation: Generation, finish: dict[str, Any]) -> None:
        generation.finish = dict(finish)
        self._ended.append(generation)

    def _run(self) -> None:
        try:
            self._loop()
        except Exception:  # a dead decoder takes the server with it, as genuine
            logger.exception("the decoder failed")
            os._exit(1)

    def _loop(self) -> None:
        while True:
            with self._wake:
                while (
                    not self._stopping and not self._ended and (self.frozen or self._paused or not self._busy)
                ):
                    self._wake.wait()
                if self._stopping:
                    return
                if not self._paused and self._admit():
                    self._steps = STEPS_PER_LOAD
                ended, self._ended = self._ended, []
            self._report(ended + ([] if self._paused or self.frozen else self._step()))

    def _admit(self) -> bool:
        """Give free slots to the head of the queue, as far as the pool has room; returns whether it had."""
        admitted = False
        used = sum(g.reserved for g in self.running())
        while self._waiting and self._free() and used + self._waiting[0].reserved <= self.limits.pool:
            generation = self._waiting.popleft()
            if generation.finish is not None:  # its last id came while it was being retracted
                continue
            slot = self._slots.index(None)
            self._slots[slot] = generation
            self.stepper.clear(slot)
            used += generation.reserved
            admitted = True
            if not generation.retractions:
                self._counters.started(generation.prompt)
        return admitted

    def _report(self, changed: list[Generation]) -> None:
        for generation in changed:
            if generation.finish is not None:
                self._counters.ended(generation)
        if changed:
            self._deliver(changed)

    def _step(self) -> list[Generation]:
        """One step; returns the generations that the event loop needs to hear of."""
        begin = time.perf_counter()
        picked = self.stepper.step(list(self._slots))
        changed = [pick.generation for pick in picked if self._take(pick)]
        self._steps += 1
        if self._steps >= STEPS_PER_LOAD:
            self._steps, self._load = 0, self._look()
        self.throughput += 0.05 * (len(picked) / (time.perf_counter() - begin) - self.throughput)
        return changed

    def _take(self, pick: Picked) -> bool:
        """Append an id; returns whether the event loop needs to hear of it."""
        generation = pick.generation
        with self._wake:
            if generation.finish is not None:  # aborted meanwhile
                return False
            if pick.score is not None:
                generation.scores.append(pick.score)
            if generation.stops.limit:  # a cap of 0 keeps no id
                generation.output.append(pick.token)
                self._counters.tokens += 1
            generation.finish = finish_reason(generation, self._tokenizer)
            if generation.finish is not None and self._slots[pick.slot] is generation:
                self._slots[pick.slot] = None
        return generation.streams or generation.finish is not None
