"""What a person sees of a run while it goes: its batches and its servers, as rows of bounded tables."""

import time
from collections import deque
from collections.abc import Iterable, Sized
from typing import Any, Final

import attrs

from tasks.fleet.server import Server

SHOWN: Final = 50
"""Most failed batches, and most open ones, in the table: with ten committed ones less than 30 kB of JSON."""

LAST: Final = 10
"""Committed batches that stay in the table."""

REASON_CHARACTERS: Final = 300


@attrs.define(slots=True, eq=False)
class Entry:
    """One batch in the book.

    Args:
        index: number of the batch.
        name: for people: number and record range.
        state: what is being done to it, in a word.
        rows: its rows.
        finished: those of them that its journal holds.
        since: when it got into this state, monotonic seconds.
        reason: why it failed, or who else has it.
    """

    index: int
    name: str
    state: str
    rows: int = 0
    finished: Sized = ()
    since: float = attrs.field(factory=time.monotonic)
    reason: str = ""

    def row(self, now: float) -> dict[str, Any]:
        """Return it as a row of the table."""
        return {
            "batch": self.name,
            "state": self.state,
            "rows": f"{len(self.finished)} of {self.rows}" if self.rows else "",
            "seconds": round(now - self.since),
            "reason": self.reason,
        }


class BatchBook:
    """Open, failed and lately committed batches of a run; older committed ones are forgotten."""

    def __init__(self) -> None:
        self._open: dict[int, Entry] = {}
        self._failed: dict[int, Entry] = {}
        self._last: deque[Entry] = deque(maxlen=LAST)

    def opened(self, index: int, name: str, rows: int, finished: Sized) -> None:
        """Note a batch whose rows are known."""
        self._open[index] = Entry(index, name, "generating", rows, finished)

    def goes_to(self, index: int, state: str) -> None:
        """Note the next step of an open batch."""
        entry = self._open[index]
        entry.state, entry.since = state, time.monotonic()

    def committed(self, index: int) -> None:
        """Note that a batch has its receipt."""
        entry = self._open.pop(index)
        self._last.append(Entry(index, entry.name, "committed", entry.rows, range(entry.rows)))

    def failed(self, index: int, name: str, reason: str) -> None:
        """Note that a batch failed in this run, or before it was open."""
        self._open.pop(index, None)
        if len(self._failed) < SHOWN:
            self._failed[index] = Entry(index, name, "failed", reason=reason[:REASON_CHARACTERS])

    def left(self, index: int) -> None:
        """Note that another worker has a batch."""
        self._open.pop(index, None)

    def table(self) -> list[dict[str, Any]]:
        """Return the rows: failed batches, open ones, the last committed ones."""
        now = time.monotonic()
        shown = [*self._failed.values(), *list(self._open.values())[:SHOWN], *reversed(self._last)]
        return [entry.row(now) for entry in shown]


class ServerBook:
    """The servers of a run, with the pace of each between two looks."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, int]] = {}

    def table(self, servers: Iterable[Server]) -> list[dict[str, Any]]:
        """Return one row per server; `running` and `waiting` are its own account, of all who use it."""
        now, rows = time.monotonic(), []
        for server in servers:
            seen, generated = self._before.get(server.url, (now, server.generated))
            self._before[server.url] = now, server.generated
            pace = (server.generated - generated) / (now - seen) if now > seen else 0.0
            told = server.describe()
            kept = ("state", "running", "waiting", "in_flight", "limit", "finished", "evictions", "alarms")
            told["state"] += f", suspicion: {told['suspicion']}" if told["suspicion"] else ""
            rows.append({"server": server.url, "tokens/s": round(pace)} | {key: told[key] for key in kept})
        return rows
