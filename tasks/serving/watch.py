"""Look at one open server every second: adapt its window, notice hangs, lost replies and overdue rows."""

import asyncio
import time
from typing import TYPE_CHECKING

import attrs

from tasks.serving.info import Loads
from tasks.serving.outcomes import AttemptError
from tasks.serving.server import OPEN, Server
from tasks.serving.window import on_loads

if TYPE_CHECKING:
    from tasks.serving.fleet import Fleet


@attrs.define(slots=True)
class Gaze:
    """What a watcher remembers between two looks.

    Args:
        stamp: the scheduler's snapshot times when it was last seen to move.
        stamp_at: when that was, our monotonic seconds (so no clock jump counts).
        quiet_since: since when the server knows of no work although we have rows there; None if it does.
        silent: failed looks in a row.
    """

    stamp: tuple[float, ...] = ()
    stamp_at: float = 0.0
    quiet_since: float | None = None
    silent: int = 0

    def look(self, loads: Loads, in_flight: int, now: float) -> None:
        """Take in one look."""
        self.silent = 0
        ticks = loads.stamp != self.stamp or not any(loads.stamp)  # before 0.5.9 there is no stamp to look at
        if loads.running + loads.waiting == 0 or (ticks and loads.running > 0):
            self.stamp, self.stamp_at = loads.stamp, now
        if in_flight and loads.running + loads.waiting == 0:
            self.quiet_since = self.quiet_since or now
        else:
            self.quiet_since = None


async def watch_server(server: Server, fleet: "Fleet") -> None:
    """Watch a server until it is not open any more."""
    gaze, epoch = Gaze(stamp_at=time.monotonic()), server.epoch
    while True:
        await asyncio.sleep(server.patience.poll_seconds)
        if server.state != OPEN or server.epoch != epoch:
            return None
        _drop_overdue(server)
        try:
            loads = await server.client.loads(timeout_seconds=server.patience.look_seconds)
        except AttemptError as error:
            gaze.silent += 1
            if gaze.silent >= server.patience.silent_looks:
                return fleet.doubt(server, f"no look at its loads for {gaze.silent} times: {error}")
            continue
        if loads is None:
            continue
        now = time.monotonic()
        gaze.look(loads, len(server.flights), now)
        if now - gaze.stamp_at > server.patience.stale_seconds and server.flights:
            still = now - gaze.stamp_at
            told = f"{loads.running} rows running, {loads.waiting} waiting"
            return fleet.evict(server, f"its scheduler stands still for {still:.0f} s with {told}")
        _drop_lost(server, gaze, now)
        _adapt(server, fleet, loads)


def _drop_overdue(server: Server) -> None:
    for flight in server.overdue(time.monotonic()):
        flight.drop("no reply within three times what its cap explains")


def _drop_lost(server: Server, gaze: Gaze, now: float) -> None:
    limit = server.patience.lost_seconds
    if gaze.quiet_since is None or now - gaze.quiet_since < limit:
        return
    for flight in list(server.flights.values()):
        if now - flight.started > limit:
            flight.drop(f"the server knows of no work for {now - gaze.quiet_since:.0f} s: the reply is lost")


def _adapt(server: Server, fleet: "Fleet", loads: Loads) -> None:
    before = server.window
    server.window = on_loads(before, loads, len(server.flights))
    if server.window.limit > before.limit:
        fleet.changed()
