"""Which row goes to which server next: suspects apart, all others to the free slot that suits them."""

from collections.abc import Callable

from tasks.fleet.fleet import Fleet
from tasks.fleet.quarantine import Backlog, Row, Suspects
from tasks.fleet.server import AWAY, CHECKING, CLOSED, OPEN, Server

Launch = Callable[[Server, Row], None]
"""Sends one row to one server, at once and without waiting."""


class Placer:
    """Fills free slots from the backlog.

    Args:
        fleet: the servers.
        backlog: the rows.
        launch: sends one row.
        refuse: ends a row that no server will ever take.
    """

    def __init__(self, fleet: Fleet, backlog: Backlog, launch: Launch, refuse: Callable[[Row], None]) -> None:
        self._fleet, self._backlog, self._launch, self._refuse = fleet, backlog, launch, refuse

    def place(self, now: float) -> None:
        """Send all rows for which there is room now; leave one window of ready rows behind."""
        for server in self._fleet.open():
            self._place_suspects(server, now)
        roomy = self._roomy(now)
        ready = self._backlog.ready
        passed: list[Row] = []
        most = self._fleet.capacity()  # of rows that fit none of them: they wait for a wider server
        while roomy and len(passed) < most and (ready or self._refilled()):
            row = ready.popleft()
            if not (fit := self._fit(row, roomy)):
                if self._fleet.may_take(row.request):
                    passed.append(row)
                else:
                    self._refuse(row)
                continue
            server = self._fleet.pick(row.request.affinity, fit)
            self._launch(server, row)
            if not server.has_room(now):
                roomy.remove(server)
        ready.extendleft(reversed(passed))
        self._refilled()
        if not ready:
            self._adopt(now)

    def idle(self, now: float) -> list[Server]:
        """Return the servers that `place` would send a row to: right after it none."""
        backlog = self._backlog
        roomy, fresh = self._roomy(now), any(not home.dry for home in backlog.lanes)
        if backlog.ready or fresh:
            found = [s for s in roomy if fresh or any(self._fit(row, [s]) for row in backlog.ready)]
        elif self._away():
            found = [s for s in self._fleet.open() if not s.flights and s.has_room(now)]
        else:
            found = []
        return found + [s for s in self._fleet.open() if s not in found and self._takes_suspect(s, now)]

    def _fit(self, row: Row, roomy: list[Server]) -> list[Server]:
        """Return which of some servers a row may go to: where it fits, and where it has not failed if it can.

        A server that fails at once has room all the time: it would take the same rows until they are spent.
        """
        roomy = [s for s in roomy if s.takes(row.request)]
        if not row.failed_at:
            return roomy
        there = [s for s in self._fleet.servers if s.state in (OPEN, CHECKING) and s.takes(row.request)]
        others = [s for s in there if s.url not in row.failed_at]
        return [s for s in roomy if s in others] if others else roomy

    def _roomy(self, now: float) -> list[Server]:
        return [s for s in self._fleet.open() if s.has_room(now) and not self._is_testing(s)]

    def _refilled(self) -> bool:
        self._backlog.refill(self._fleet.capacity())
        return bool(self._backlog.ready)

    def _is_testing(self, server: Server) -> bool:
        held = self._backlog.suspects.get(server.url)
        return held is not None and (bool(held.rows) or any(f.row.suspect for f in server.flights.values()))

    def _takes_suspect(self, server: Server, now: float) -> bool:
        held = self._backlog.suspects.get(server.url)
        if held is None or not held.rows or any(not f.row.suspect for f in server.flights.values()):
            return False
        return len(server.flights) < held.most and server.has_room(now)

    def _place_suspects(self, server: Server, now: float) -> None:
        while self._takes_suspect(server, now):
            self._launch(server, self._backlog.suspects[server.url].rows.popleft())

    def _away(self) -> list[Suspects]:
        away = {s.url for s in self._fleet.servers if s.state in (AWAY, CLOSED)}
        return [held for held in self._backlog.suspects.values() if held.url in away and held.rows]

    def _adopt(self, now: float) -> None:
        """Let an idle server test the suspects of one that is away, when nothing else is left to do."""
        for held in self._away():
            idle = next((s for s in self._fleet.open() if not s.flights and s.has_room(now)), None)
            if idle is None:
                return
            _hand_over(held, self._backlog.held(idle.url))
            self._place_suspects(idle, now)


def _hand_over(held: Suspects, heir: Suspects) -> None:
    for row in held.rows:
        row.suspect = heir.url
    heir.rows.extend(held.rows)
    heir.most = held.most
    held.rows.clear()
    held.accused = None
