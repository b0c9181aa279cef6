"""One server as the fleet sees it: its state, its window, the rows in flight on it."""

import asyncio
import math
from typing import Any, Final, Protocol

import attrs

from tasks.fleet.climb import OPENED, REFUSED, Climb, Replies, on_pace
from tasks.fleet.ensure import ServerReport
from tasks.fleet.window import Window, on_busy, open_window
from tasks.rows.lengths import LengthLimits
from tasks.rows.records import Completion, Request
from tasks.sglang.client import ServerClient
from tasks.sglang.clock import loop_seconds
from tasks.sglang.info import Loads
from tasks.sglang.restart.process import ServerProcess
from tasks.sglang.settings import Patience

OPENING, OPEN, CHECKING, AWAY, CLOSED = "opening", "open", "checking", "away", "closed"
"""Being ensured at first · takes rows · in doubt, takes none · down, being waited for · shut out for good."""


UNSEEN_PACE: Final = 0.2
"""Seconds an id of a server that has not completed a row yet: slower than any that is worth waiting for."""

TOLD_FACTOR: Final = 10.0


@attrs.define(slots=True, eq=False)
class Flight:
    """One attempt at a row that is on its way.

    Args:
        rid: its request id.
        row: whose attempt it is; opaque here.
        cap: most ids it may generate.
        started: when it was sent, monotonic seconds.
        factor: how many times the usual it is waited for: twice for each reply of the row that was missed.
        task: what waits for the reply.
        given_up: why it was dropped, "" while it is waited for.
        disowned: its server has another model since, maybe: what comes of it does not count.
    """

    rid: str
    row: Any
    cap: int
    started: float
    factor: float = 1.0
    task: "asyncio.Task[None] | None" = None
    given_up: str = ""
    disowned: bool = False

    def drop(self, why: str) -> None:
        """Stop waiting for it; its task sees `given_up` and hands the row back."""
        if not self.given_up and self.task is not None:
            self.given_up = why
            self.task.cancel()


class Server:
    """One server of the fleet; changed only on the event loop.

    Args:
        client: the open client.
        patience: time limits.
        wished: rows in flight at first that the job asks for.
        sharers: runs that use the server at once, this one among them.
    """

    def __init__(
        self, client: ServerClient, patience: Patience, wished: int | None, sharers: int = 1
    ) -> None:
        self.client = client
        self.url = client.url
        self.patience = patience
        self.wished = wished
        self.sharers = sharers
        self.state = OPENING
        self.window = Window(1)
        self.loads: Loads | None = None  # its own account, when it was last looked at
        self.climb: Climb = OPENED  # how its window is found when it gives no such account
        self.replies = Replies()
        self.report: ServerReport | None = None
        self.lengths: LengthLimits | None = None  # that it accepts; None while they are not known
        self._longest_prompt = math.inf
        self.started: ServerProcess | None = None  # the process that this run started, if it did
        self.error: Exception | None = None
        self.flights: dict[str, Flight] = {}
        self.opened = self.away_since = loop_seconds()
        self.out_since = self.away_since  # when it was last taken out, whatever came before
        self.useful = True  # since it was away: a server that dies before it completes a row was never back
        self.busy_until = 0.0
        self.busy_since: float | None = None
        self.busy_times = 0
        self.failures_in_a_row = 0
        self.refusing = 0  # times that it refused a control prompt too, since it last completed a row
        self.cut_at = 0.0  # age at which an answer of it was last cut on its way
        self.slow_token_seconds = 0.0
        self.finished = self.proved = 0  # rows, and how many when its model was last known to be the same
        self.generated = 0
        self.evictions = 0
        self.alarms = 0
        self.suspicion = ""  # why its rows are thought to fail more often than the others'
        self.alarmed_at: float | None = None
        self.epoch = 0

    def admit(self, report: ServerReport) -> None:
        """Open it after a passed probe; its window starts anew at what it runs."""
        self.report, self.error, self.proved = report, None, self.finished
        self.lengths = report.info.lengths
        longest = self.lengths.longest_prompt  # looked at for every row: not worked out each time
        self._longest_prompt = math.inf if longest is None else longest
        if report.restarted is not None:
            self.started = report.restarted.process
        self.reopen()
        self.opened = loop_seconds()
        self.busy_until, self.busy_since, self.busy_times, self.failures_in_a_row = 0.0, None, 0, 0
        self.window = open_window(self.wished, report.slots, self.sharers)
        self.climb, self.replies = OPENED, Replies(self.opened)

    def reopen(self) -> None:
        """Let it take rows; whoever watched it before stops by the changed epoch."""
        self.state = OPEN
        self.epoch += 1

    def disown(self) -> None:
        """Let no row count that is in flight here: the model is not the one that it was begun with."""
        for flight in self.flights.values():
            flight.disowned = True

    def shut(self, state: str, error: Exception | None = None) -> None:
        """Take it out: `AWAY` until a fresh probe, or `CLOSED` for good with the error."""
        self.out_since = now = loop_seconds()
        if self.state != AWAY and (self.useful or now - self.opened > self.patience.settled_seconds):
            self.away_since, self.useful = now, False
        self.state, self.error = state, error

    def takes(self, request: Request) -> bool:
        """Whether a row's prompt fits its context, as far as it is known."""
        return request.input_ids.size <= self._longest_prompt

    def cap(self, request: Request) -> int:
        """Return how many ids a row may get here: its own cap, or what this server's context leaves."""
        wanted = request.max_new_tokens
        return wanted if self.lengths is None else self.lengths.cap(wanted, request.input_ids.size)

    def has_room(self, now: float) -> bool:
        """Whether one more row may be sent to it now."""
        return self.state == OPEN and now >= self.busy_until and len(self.flights) < self.window.limit

    def load(self) -> float:
        """Rows in flight relative to the window."""
        return len(self.flights) / self.window.limit

    def answered(self, completion: Completion) -> None:
        """Learn from a completed row."""
        count, latency = completion.output_ids.size, float(completion.facts["latency_seconds"])
        if loop_seconds() - latency >= self.replies.since:
            self.replies.add(count, latency)
        self.useful = True
        self.finished += 1
        self.generated += count
        self.failures_in_a_row, self.busy_since, self.busy_times, self.refusing = 0, None, 0, 0
        if count >= 16:
            self.slow_token_seconds = max(latency / count, self.slow_token_seconds * 0.99)

    def feel(self, now: float) -> None:
        """Adapt the window by the replies alone; those of a window that was not full say nothing of it."""
        if len(self.flights) < self.window.limit:
            self.replies = Replies(now)
        elif self.replies.is_measure(self.window.limit):
            measured = self.replies
            limit, self.climb = on_pace(self.climb, self.window.limit, measured.speed, measured.noise)
            self.window, self.replies = attrs.evolve(self.window, limit=limit), Replies(now)

    def raise_alarm(self, now: float) -> bool:
        """Note that it answered with broken ids; whether a fresh probe is due by now."""
        self.alarms += 1
        due = self.alarmed_at is None or now - self.alarmed_at >= self.patience.alarm_seconds
        if due:
            self.alarmed_at = now
        return due

    def refused_as_busy(self, now: float) -> None:
        """Leave it alone for a while after it said that it is full; longer each time."""
        if now < self.busy_until:
            return  # one wave of refusals counts once
        self.window = on_busy(self.window)
        self.climb, self.replies = REFUSED, Replies(now)
        self.busy_since = self.busy_since or now
        self.busy_until = now + self.patience.backoff(self.busy_times)
        self.busy_times += 1

    def overdue(self, now: float) -> list[Flight]:
        """Return the attempts that take longer than their cap explains: three times the slowest seen pace.

        While the server itself says that it has as many rows as we have there, it takes ten times that: the
        pace may have changed, and a row that is being made is not given up.
        """
        floor, pace = self.patience.deadline_floor_seconds, 3.0 * (self.slow_token_seconds or UNSEEN_PACE)
        loads = self.loads
        if loads is not None and loads.running + loads.waiting >= len(self.flights):
            floor, pace = TOLD_FACTOR * floor, TOLD_FACTOR * pace
        return [f for f in self.flights.values() if now - f.started > max(floor, f.cap * pace) * f.factor]

    def stranded(self, now: float) -> list[Flight]:
        """Return the attempts that a server which is out may still end, and has had its time for."""
        if self.state not in (AWAY, CLOSED):
            return []
        floor, pace = self.patience.deadline_floor_seconds, 3.0 * self.slow_token_seconds
        begun = self.out_since
        return [f for f in self.flights.values() if now - max(begun, f.started) > max(floor, f.cap * pace)]

    def describe(self) -> dict[str, Any]:
        """Return its state as JSON-able data."""
        return {
            "url": self.url,
            "state": self.state,
            "limit": self.window.limit,
            "in_flight": len(self.flights),
            "running": None if self.loads is None else self.loads.running,
            "waiting": None if self.loads is None else self.loads.waiting,
            "finished": self.finished,
            "generated": self.generated,
            "evictions": self.evictions,
            "alarms": self.alarms,
            "suspicion": self.suspicion,
        }


class Listener(Protocol):
    """Who is told of changes: the dispatch."""

    def fill(self) -> None:
        """A slot may be free."""

    def on_alive(self, server: Server) -> None:
        """A server in doubt is the one it was."""

    def on_down(self, server: Server) -> None:
        """A server is gone, and what was in flight with it."""

    def on_out(self, server: Server) -> None:
        """A server takes no more rows; those in flight there may still end."""

    def on_admitted(self, server: Server) -> None:
        """A server has passed a fresh probe."""
