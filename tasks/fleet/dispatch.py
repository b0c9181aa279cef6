"""Rows × fleet → completions: the only place that spawns row work.

One window of rows spans all lanes; a slot is refilled in the same step that frees it. Each row ends exactly
once: as a completion, or as an unsent row with its reason. Outages and busy servers cost a row no attempt.
"""

import asyncio
from types import TracebackType
from typing import Any, Self

import attrs

from tasks.fleet.attempts import Attempts
from tasks.fleet.fleet import Fleet
from tasks.fleet.placing import Placer
from tasks.fleet.quarantine import Backlog, Lane, OpenLane
from tasks.fleet.server import Server
from tasks.fleet.watchdog import Watchdog
from tasks.sglang.clock import loop_seconds


@attrs.frozen(slots=True)
class DispatchStats:
    """Where a dispatch stands.

    Args:
        finished: rows that a server completed.
        prompt_tokens: ids sent in them.
        output_tokens: ids that came back in them.
        unsent: rows that ended without a completion.
        in_flight: rows on their way.
        ready: rows waiting for a slot.
        outcomes: failed attempts by how they failed.
        servers: each server's state, JSON-able.
    """

    finished: int
    prompt_tokens: int
    output_tokens: int
    unsent: int
    in_flight: int
    ready: int
    outcomes: dict[str, int]
    servers: tuple[dict[str, Any], ...]


class Dispatch:
    """Sends the rows of lanes to a fleet. An async context manager; leaving it drops what is in flight.

    Args:
        fleet: an ensured fleet.
        sampling: the job's resolved `sampling_params`.
        vocab_size: ids outside [0, vocab_size) are never sent.
        max_attempts: failed attempts of a row before it is parked as poison.
    """

    def __init__(self, fleet: Fleet, sampling: dict[str, Any], vocab_size: int, max_attempts: int) -> None:
        self.fleet = fleet
        self._backlog = Backlog()
        self._attempts = Attempts(
            fleet, self._backlog, sampling, vocab_size, max_attempts, self.fill, self._fail
        )
        self._placer = Placer(fleet, self._backlog, self._attempts.launch, self._attempts.refuse)
        self._watchdog = Watchdog(fleet, self._backlog, self._attempts, self._stall, self.fill)
        self._watching: asyncio.Task[None] | None = None
        self._hungry: list[asyncio.Future[None]] = []
        self._error: BaseException | None = None

    async def __aenter__(self) -> Self:
        self.fleet.listener = self
        self._watching = asyncio.ensure_future(self._watchdog.watch())
        self._watching.add_done_callback(self._watched)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.fleet.listener = None
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        self._fail(asyncio.CancelledError("the dispatch was closed"))
        await self._attempts.close()

    async def run(self, lane: Lane) -> None:
        """Send a lane's rows; return when the lane is done. Cancelling it drops the lane's rows in flight.

        Raises:
            SurroundingsError: no server answers any more.
            UnfaithfulError: no server is left that may make token data.
        """
        if self._error is not None:
            raise self._error
        if lane.done:
            return
        home = OpenLane(lane, asyncio.get_running_loop().create_future())
        self._backlog.lanes.append(home)
        self.fill()
        try:
            await home.ended
        finally:
            self._backlog.drop_lane(home)
            mine = [f for s in self.fleet.servers for f in s.flights.values() if f.row.home is home]
            await home.call_off()
            await self._attempts.call_off(mine)
            self.fill()

    async def hungry(self) -> None:
        """Return when fewer rows wait for a slot than one window over all open servers.

        Open the next lane (`run`) before asking again.

        Raises:
            SurroundingsError: no server answers any more.
        """
        if self._error is not None:
            raise self._error
        if not self._is_hungry():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._hungry.append(waiter)
            await waiter

    def stats(self) -> DispatchStats:
        """Return where it stands."""
        attempts = self._attempts
        return DispatchStats(
            finished=attempts.finished,
            prompt_tokens=attempts.prompt_tokens,
            output_tokens=attempts.output_tokens,
            unsent=attempts.unsent,
            in_flight=sum(len(s.flights) for s in self.fleet.servers),
            ready=len(self._backlog.ready),
            outcomes=dict(self._backlog.outcomes),
            servers=tuple(s.describe() for s in self.fleet.servers),
        )

    def fill(self) -> None:
        """Send what can be sent: called whenever a slot, a row or a server becomes free."""
        if self._error is not None:
            return
        if (error := self.fleet.failure()) is not None:
            self._fail(error)
            return
        self._placer.place(loop_seconds())
        if self._hungry and self._is_hungry():
            _resolve(self._hungry)
        self._find_stuck()

    def on_alive(self, server: Server) -> None:
        """A server in doubt is the one it was."""
        self._attempts.on_alive(server)

    def on_down(self, server: Server) -> None:
        """A server is gone, and what was in flight with it."""
        self._attempts.on_down(server)

    def on_out(self, server: Server) -> None:
        """A server takes no more rows; those in flight there may still end."""
        self._attempts.on_out(server)

    def on_admitted(self, server: Server) -> None:
        """A server has passed a fresh probe."""
        self._attempts.on_admitted(server)

    def _watched(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _stall(self, now: float) -> str:
        """Return what `fill` would do now, in words; "" right after it, until something changes."""
        if self._error is not None:
            return ""
        if idle := self._placer.idle(now):
            waiting = len(self._backlog.waiting())
            return f"{', '.join(s.url for s in idle)} had room, {waiting} rows or more waited"
        if self._hungry and self._is_hungry():
            return "the next batch was waited for"
        ended = sum(home.is_stuck for home in self._backlog.lanes)
        return f"{ended} batches at their end were still open" if ended else ""

    def _is_hungry(self) -> bool:
        return len(self._backlog.ready) < self.fleet.capacity()

    def _find_stuck(self) -> None:
        for home in self._backlog.lanes:
            if home.dry and home.is_stuck:
                if home.lane.done:
                    home.ended.set_result(None)
                else:
                    home.ended.set_exception(RuntimeError("a lane is not done, yet gives no request"))

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
            _resolve([home.ended for home in self._backlog.lanes], error)
            _resolve(self._hungry, error)


def _resolve(waiters: "list[asyncio.Future[None]]", error: BaseException | None = None) -> None:
    for waiter in waiters:
        if waiter.done():
            continue
        if error is None:
            waiter.set_result(None)
        elif isinstance(error, asyncio.CancelledError):
            waiter.cancel()
        else:
            waiter.set_exception(error)
    if error is None:
        waiters.clear()
