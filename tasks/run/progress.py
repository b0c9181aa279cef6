"""Counters of a run while it goes. Pure but for the clock."""

import time
from collections import deque

import attrs

RATE_WINDOW_SECONDS = 30.0
"""Tokens per second are taken over this long: long enough to smooth rows, short enough to see a stall."""

MARK_SECONDS = 0.5
"""A mark of the rate window at most this often: its memory does not grow with the row rate."""


@attrs.define(slots=True)
class Progress:
    """Counters of one run; the ledger, not this, says what is done.

    Args:
        records: source records of the batches this run works on.
        batches: batches this run works on.
        rows_finished: rows of opened batches that their journals hold: made, resumed, copied or refused.
        rows_made: of those, the ones that this run had a server make.
        tokens: output ids that servers made in this run.
    """

    records: int = 0
    batches: int = 0
    batches_committed: int = 0
    records_committed: int = 0
    rows_finished: int = 0
    rows_made: int = 0
    rows_expected: int = 0
    records_opened: int = 0
    tokens: int = 0
    started: float = attrs.field(factory=time.monotonic)
    _marks: deque[tuple[float, int]] = attrs.field(factory=deque)

    def opened(self, records: int, rows: int, finished: int) -> None:
        """Note that a batch of so many records has so many rows, and how many of those its journal holds."""
        self.records_opened += records
        self.rows_expected += rows
        self.rows_finished += finished

    def refused(self, rows: int) -> None:
        """Note rows that no server is asked for."""
        self.rows_finished += rows

    def made(self) -> None:
        """Note one row that a server has finished."""
        self.rows_finished += 1
        self.rows_made += 1

    def generated(self, output_tokens: int) -> None:
        """Note the output ids of one reply: a row's only one, or one round of it."""
        self.tokens += output_tokens
        now = time.monotonic()
        if not self._marks or now - self._marks[-1][0] >= MARK_SECONDS:
            self._marks.append((now, self.tokens))
        while now - self._marks[0][0] > RATE_WINDOW_SECONDS:
            self._marks.popleft()

    def committed(self, records: int) -> None:
        """Note one committed batch of so many records."""
        self.batches_committed += 1
        self.records_committed += records

    def took(self, records: int, rows: int, made: int, output_tokens: int) -> None:
        """Note a batch that another run has committed, with so many rows, of which it made some."""
        self.opened(records, rows, rows)
        self.rows_made += made
        self.tokens += output_tokens
        self.committed(records)

    @property
    def rows_total(self) -> int:
        """Rows of this run: known for opened batches, extrapolated for the others."""
        if not self.records_opened:
            return self.records
        return round(self.rows_expected * self.records / self.records_opened)

    @property
    def tokens_per_second(self) -> float:
        """Output ids per second over the last half minute; 0 before the first row."""
        if len(self._marks) < 2:
            elapsed = time.monotonic() - self.started
            return self.tokens / elapsed if self.tokens and elapsed > 0 else 0.0
        seconds = time.monotonic() - self._marks[0][0]
        return (self.tokens - self._marks[0][1]) / seconds if seconds > 0 else 0.0

    @property
    def share(self) -> float:
        """Finished share of this run's rows, in [0, 1]."""
        total = self.rows_total
        return min(1.0, self.rows_finished / total) if total else 1.0

    def describe(self) -> str:
        """Return one line: rows, tokens, pace, time to go."""
        estimate = self.estimate_seconds
        left = "no estimate yet" if estimate is None else f"about {estimate:,.0f} s to go"
        return (
            f"{self.rows_finished} of about {self.rows_total} rows, {self.tokens} tokens, "
            f"{self.tokens_per_second:,.0f} tokens/s, "
            f"{self.batches_committed} of {self.batches} batches, {left}"
        )

    @property
    def estimate_seconds(self) -> float | None:
        """Seconds to go at the pace of this run so far; None before the first row that it makes."""
        if not self.rows_made:
            return None
        elapsed = time.monotonic() - self.started
        return elapsed * max(0, self.rows_total - self.rows_finished) / self.rows_made
