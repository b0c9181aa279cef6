"""The decoder's thread: waiting queue, slots, one step after another."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from deployments.standin.counters import Counters
from deployments.standin.generation import Generation
from deployments.standin.network import ROWS, Network
from deployments.standin.sampling import Row, log_probability, sample
from deployments.standin.stopping import finish_reason
from deployments.standin.weights import Float

PIECES_PER_STEP = 8  # prompt pieces of ROWS ids between two decode steps
ABORTED: dict[str, Any] = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
ABORTED_WAITING: dict[str, Any] = {"type": "abort", "message": "Abort in waiting queue"}


class QueueFullError(Exception):
    """The waiting queue has reached --max-queued-requests."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much runs and waits at once."""

    running: int
    queued: int | None
    pool: int  # cache positions of all running generations together


class Engine:
    """Owns the network; everything public may be called from any thread."""

    def __init__(self, network: Network, tokenizer: Tokenizer, limits: Limits, counters: Counters,
                 deliver: Callable[[list[Generation]], None]) -> None:
        """`deliver` is called on the engine's thread with the generations that changed in a step."""
        self._network, self._tokenizer, self._counters, self._deliver = network, tokenizer, counters, deliver
        self.limits = limits
        self._wake = threading.Condition()
        self._waiting: deque[Generation] = deque()
        self._slots: list[Generation | None] = [None] * network.cache.size[1]
        self._filled = [0] * len(self._slots)  # context ids whose keys lie in the cache
        self._ended: list[Generation] = []  # by abort; delivered with the next step
        self._paused = self._stopping = self.frozen = False
        self.beat = time.time()
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
        """Stop stepping; `abort` ends what runs, `retract` sends it back to the queue, `in_place` freezes it."""
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

    def _free(self) -> int:
        return max(0, self.limits.running - len(self.running()))

    def _end(self, generation: Generation, finish: dict[str, Any]) -> None:
        generation.finish = dict(finish)
        self._ended.append(generation)

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._stopping and not self._ended and (
                    self.frozen or self._paused or not (self._waiting or self.running())
                ):
                    self._wake.wait()
                if self._stopping:
                    return
                if not self._paused:
                    self._admit()
                ended, self._ended = self._ended, []
            self._report(ended + ([] if self._paused or self.frozen else self._step()))

    def _admit(self) -> None:
        """Give free slots to the head of the queue, as far as the pool has room."""
        used = sum(g.reserved for g in self.running())
        while self._waiting and self._free() and used + self._waiting[0].reserved <= self.limits.pool:
            generation = self._waiting.popleft()
            slot = self._slots.index(None)
            self._slots[slot], self._filled[slot] = generation, 0
            used += generation.reserved
            self._counters.started(generation.prompt)

    def _report(self, changed: list[Generation]) -> None:
        for generation in changed:
            if generation.finish is not None:
                self._counters.ended(generation)
        if changed:
            self._deliver(changed)

    def _step(self) -> list[Generation]:
        """Some prompt pieces, then one id for every slot whose prompt is done."""
        begin, made = time.perf_counter(), 0
        held = list(self._slots)
        fresh = self._prefill(held)
        changed: list[Generation] = []
        for group in range(len(held) // ROWS):
            slots = [s for s in range(group * ROWS, (group + 1) * ROWS) if self._decodes(s, held[s]) or s in fresh]
            if slots:
                made += len(slots)
                changed += self._advance(group, {s: g for s in slots if (g := held[s]) is not None}, fresh)
        self.beat = time.time()
        self.throughput += 0.05 * (made / (time.perf_counter() - begin) - self.throughput)
        return changed

    def _decodes(self, slot: int, generation: Generation | None) -> bool:
        """Whether all but the newest id of a slot lies in the cache, and a newest id exists."""
        if generation is None or not generation.output:
            return False
        return self._filled[slot] == len(generation.prompt) + len(generation.output) - 1

    def _prefill(self, held: list[Generation | None]) -> dict[int, Float]:
        """Fill caches piece by piece; returns the last hidden row of each context that became complete."""
        complete: dict[int, Float] = {}
        pieces = PIECES_PER_STEP
        for slot, generation in enumerate(held):
            if generation is None or self._decodes(slot, generation):
                continue
            context = np.array(generation.context, np.intp)
            while pieces and self._filled[slot] < len(context):
                start = self._filled[slot]
                hidden = self._network.prefill(slot, context[start : start + ROWS], start)
                self._filled[slot] += len(hidden)
                pieces -= 1
                if self._filled[slot] == len(context):
                    complete[slot] = hidden[-1]
        return complete

    def _advance(self, group: int, slots: dict[int, Generation], fresh: dict[int, Float]) -> list[Generation]:
        """One more id for the given slots of a group."""
        tokens, positions = np.zeros(ROWS, np.intp), np.full(ROWS, -1)
        for slot, generation in slots.items():
            if slot not in fresh:
                tokens[slot % ROWS] = generation.output[-1]
                positions[slot % ROWS] = self._filled[slot]
                self._filled[slot] += 1
        if positions.max() < 0:
            hidden: Float = np.zeros((ROWS, self._network.weights.shape.hidden), np.float32)
        else:
            hidden = self._network.decode(group, tokens, positions)
        for slot in slots.keys() & fresh.keys():
            hidden[slot % ROWS] = fresh[slot]
        logits = self._network.logits(hidden)
        rows = [Row(slot % ROWS, g.choice, g.prompt, g.output) for slot, g in slots.items()]
        picked = sample(logits, rows)
        return [g for (slot, g), token in zip(slots.items(), picked, strict=True)
                if self._append(slot, g, int(token), logits[slot % ROWS])]

    def _append(self, slot: int, generation: Generation, token: int, logits: Float) -> bool:
        """Take one id; returns whether the event loop needs to hear of it."""
        if generation.finish is not None:  # aborted meanwhile
            return False
        if generation.wants_logprobs:
            generation.logprobs.append(log_probability(logits, token))
        generation.output.append(token)
        self._counters.tokens += 1
        generation.finish = finish_reason(generation, self._tokenizer)
        if generation.finish is not None:
            with self._wake:
                if self._slots[slot] is generation:
                    self._slots[slot] = None
        return generation.streams or generation.finish is not None
