"""The watch of one open server, a look a second: its window, hangs, lost replies, overdue rows."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import attrs

from tasks.fleet.server import OPEN, Server
from tasks.fleet.window import on_loads
from tasks.sglang.clock import loop_seconds
from tasks.sglang.info import Loads
from tasks.sglang.outcomes import AttemptError

UNREADY_LOOKS: Final = 2
"""So many looks in a row must find a server unready: one `/health` that took too long makes it so as well."""

QUIET_SNAPSHOTS: Final = 3
"""So many fresh snapshots must show none of our rows: two may be far apart when our process stood still."""


@attrs.frozen(slots=True)
class Wider:
    """Seen: the window has grown, so more rows may be sent."""


@attrs.frozen(slots=True)
class Doubtful:
    """Seen: reasons to find out whether the server is still there."""

    why: str


@attrs.frozen(slots=True)
class Unfit:
    """Seen: the server must take no more rows.

    Args:
        why: the evidence.
        drop: whether its rows in flight are given up, or may still end.
    """

    why: str
    drop: bool = True


Seen = Wider | Doubtful | Unfit


@attrs.define(slots=True)
class Gaze:
    """What a watcher remembers between two looks.

    Args:
        stamp: the scheduler's snapshot times when it was last seen to move; an idle one moves too.
        stamp_at: when that was, our monotonic seconds (so no clock jump counts).
        quiet_since: since when the server knows of no work although we have rows there; None if it does.
        quiet_snapshots: how many fresh snapshots have shown that since.
        adapted: the snapshot that the window was last adapted to.
        silent: failed looks in a row.
        unready: looks in a row at which it wanted no rows.
    """

    stamp: tuple[float, ...] = ()
    stamp_at: float = 0.0
    quiet_since: float | None = None
    quiet_snapshots: int = 0
    adapted: tuple[float, ...] = ()
    silent: int = 0
    unready: int = 0

    def look(self, loads: Loads, in_flight: int, now: float) -> None:
        """Take in one look."""
        fresh = loads.stamp != self.stamp
        ticks = fresh or not any(loads.stamp)  # before 0.5.9 there is no stamp to look at
        if not in_flight or (ticks and (loads.running > 0 or loads.waiting == 0)):
            self.stamp, self.stamp_at = loads.stamp, now
        if not in_flight or loads.running + loads.waiting:
            self.quiet_since = None
        elif self.quiet_since is None:
            self.quiet_since, self.quiet_snapshots = now, 0
        else:
            self.quiet_snapshots += fresh

    def is_new(self, loads: Loads) -> bool:
        """Whether the window was not adapted to this snapshot yet: SGLang renews it every few dozen steps."""
        new = loads.stamp != self.adapted or not any(loads.stamp)
        self.adapted = loads.stamp
        return new

    def quiet_seconds(self, now: float) -> float:
        """Return for how long the server has known of none of our rows, as far as fresh snapshots show."""
        if self.quiet_since is None or self.quiet_snapshots < QUIET_SNAPSHOTS:
            return 0.0
        return now - self.quiet_since


async def watch_server(server: Server) -> AsyncIterator[Seen]:
    """Watch a server until it is not open any more; yield what the fleet has to act on.

    Nothing follows a `Doubtful` or an `Unfit`: whoever opens the server again watches it anew.
    """
    gaze, epoch = Gaze(stamp_at=loop_seconds()), server.epoch
    while True:
        await asyncio.sleep(server.patience.poll_seconds)
        if server.state != OPEN or server.epoch != epoch:
            return
        try:
            loads = await server.client.loads(timeout_seconds=server.patience.look_seconds)
            ready = await server.client.takes_work(timeout_seconds=server.patience.look_seconds)
        except AttemptError as error:
            gaze.silent += 1
            if gaze.silent >= server.patience.silent_looks or error.outcome == "refused":
                yield Doubtful(f"no look at its loads for {gaze.silent} times: {error}")
                return
            continue
        gaze.silent, gaze.unready = 0, 0 if ready else gaze.unready + 1
        if gaze.unready >= UNREADY_LOOKS:
            yield Unfit("it drains, is paused or unwell (/ready is 503)", drop=False)
            return
        _drop_overdue(server)  # after a look: what came while our process stood still has been read by now
        before = server.window.limit
        fault = _take_in(gaze, server, loads, loop_seconds())
        if fault is not None:
            yield fault
            return
        if server.window.limit > before:
            yield Wider()


def _take_in(gaze: Gaze, server: Server, loads: Loads | None, now: float) -> Unfit | None:
    """Adapt the window to one look and give up lost rows; return why no more rows may go there, if so."""
    if loads is None:
        server.feel(now)
        return None
    server.loads = loads
    gaze.look(loads, len(server.flights), now)
    still = now - gaze.stamp_at
    if still > server.patience.stale_seconds and server.flights:
        told = f"{loads.running} rows running, {loads.waiting} waiting"
        return Unfit(f"its scheduler stands still for {still:.0f} s with {told}")
    _drop_lost(server, gaze.quiet_seconds(now), now)
    if gaze.is_new(loads):
        server.window = on_loads(server.window, loads, len(server.flights))
    return None


def _drop_overdue(server: Server) -> None:
    for flight in server.overdue(loop_seconds()):
        flight.drop("no reply within three times what its cap explains")


def _drop_lost(server: Server, quiet_seconds: float, now: float) -> None:
    limit = server.patience.lost_seconds
    if quiet_seconds < limit:
        return
    for flight in list(server.flights.values()):
        if now - flight.started > limit:
            flight.drop(f"the server knows of no work for {quiet_seconds:.0f} s: the reply is lost")
