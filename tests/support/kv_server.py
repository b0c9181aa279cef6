"""A genuine server's scheduler in numbers: it tells thousands of slots and runs what its KV pool holds.

After SGLang's `PrefillAdder` and `ScheduleBatch.retract_decode`: a row is admitted where the pool holds what
runs, what those rows are expected to add (a ratio of their caps, which falls while all goes well), and the
row. Where the guess was too low the youngest rows go back to the queue and the ratio is high again.
"""

import numpy as np

from tasks.sglang.info import Loads

FIRST_RATIO, LEAST_RATIO, RATIO_STEPS = 0.7, 0.098, 600
"""`init_new_token_ratio`, its `min` and the steps in between (0.5.16's defaults)."""

STEPS_PER_LINE = 40
"""Decode steps between two log lines (`decode_log_interval`): a new snapshot, and `retracted` begins anew."""


class KvServer:
    """Steps rows whose lengths are drawn; one step gives each running row an id.

    Args:
        pool: ids that its KV cache holds.
        mean: mean length of an answer, geometric.
        cap: most ids of an answer.
        prompt: ids of a prompt.
        told: rows that it says it runs at once.
    """

    def __init__(
        self, pool: int, mean: int = 500, cap: int = 4096, prompt: int = 100, told: int = 4096
    ) -> None:
        self.pool, self.mean, self.cap, self.prompt, self.told = pool, mean, cap, prompt, told
        self.dice = np.random.default_rng(7)
        self.length, self.made = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self.waiting: list[tuple[int, int]] = []  # (length, ids made before it was pushed back)
        self.ratio, self.retracted, self.retractions = FIRST_RATIO, 0, 0
        self.generated = self.steps = 0
        self.snapshot = Loads(0, 0, max_running=told)

    @property
    def in_flight(self) -> int:
        """Rows here."""
        return self.length.size + len(self.waiting)

    def send(self, count: int) -> None:
        """Take rows."""
        lengths = np.minimum(self.dice.geometric(1.0 / self.mean, count), self.cap)
        self.waiting += [(int(length), 0) for length in lengths]

    def step(self) -> None:
        """Admit, decode one id a row, push back what does not fit, end what is done."""
        self._admit()
        if self._used() + self.length.size > self.pool:
            self._retract()
        self.made += 1
        self.generated += self.length.size
        going = self.made < self.length
        self.length, self.made = self.length[going], self.made[going]
        self.ratio = max(LEAST_RATIO, self.ratio - (FIRST_RATIO - LEAST_RATIO) / RATIO_STEPS)
        self.steps += 1
        if self.steps % STEPS_PER_LINE == 0:
            usage = self._used() / self.pool
            seen = (self.length.size, len(self.waiting), usage, self.told, 0.0, self.retracted)
            self.snapshot, self.retracted = Loads(*seen, stamp=(float(self.steps),)), 0

    def _used(self) -> int:
        return int(self.made.sum()) + self.prompt * self.length.size

    def _admit(self) -> None:
        held = self._used() + self.ratio * float((self.cap - self.made).sum())
        new: list[tuple[int, int]] = []
        for length, made in self.waiting:
            held += self.prompt + made + self.ratio * (self.cap - made)
            if held > self.pool or self.length.size + len(new) >= self.told:
                break
            new.append((length, made))
        del self.waiting[: len(new)]
        self.length = np.append(self.length, [length for length, _ in new]).astype(np.int64)
        self.made = np.append(self.made, [made for _, made in new]).astype(np.int64)

    def _retract(self) -> None:
        order = np.argsort(self.made)
        gone = 0
        while self._used() - int(self.made[order[:gone]].sum()) - self.prompt * gone > 0.95 * self.pool:
            gone += 1
        out, kept = order[:gone], np.sort(order[gone:])
        self.waiting[:0] = [(int(self.length[i]), int(self.made[i])) for i in out]
        self.length, self.made = self.length[kept], self.made[kept]
        self.retracted += gone
        self.retractions += gone
        self.ratio = FIRST_RATIO
