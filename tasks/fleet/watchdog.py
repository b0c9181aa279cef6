"""The watchdog of a dispatch: with rows left and a server open, something is in flight or a wake-up is armed.

Whatever frees a slot, a row or a server fills slots in the same step, so there is nothing to mend unless that
rule is broken somewhere. Then the run would wait for ever and say nothing: what is found twice in a row, with
nothing sent in between, is mended and told in one line.
"""

import asyncio
from collections.abc import Callable

from tasks.fleet.attempts import Attempts
from tasks.fleet.fleet import Fleet
from tasks.fleet.quarantine import Backlog, Row
from tasks.fleet.server import CHECKING, Server
from tasks.sglang.clock import loop_seconds


class Watchdog:
    """Looks at the rows and servers of one dispatch every few seconds.

    Args:
        fleet: the servers.
        backlog: the rows that wait.
        attempts: the rows that are being tried.
        stall: what `fill` would do at a time, in words; "" for nothing, as it is right after a `fill`.
        fill: does it.
    """

    def __init__(
        self,
        fleet: Fleet,
        backlog: Backlog,
        attempts: Attempts,
        stall: Callable[[float], str],
        fill: Callable[[], None],
    ) -> None:
        self._fleet, self._backlog, self._attempts = fleet, backlog, attempts
        self._stall, self._fill = stall, fill
        self._unheld: set[Row] = set()
        self._stalled_at: int | None = None  # how many rows had been sent when slots were seen to stand empty

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(self._fleet.settings.patience.watchdog_seconds)
            self.look(loop_seconds())

    def look(self, now: float) -> None:
        """Mend what stood still at the last look already; take back what a server that is out keeps."""
        unheld, launched = self._find_unheld(now), self._attempts.launched
        if lost := unheld & self._unheld:
            places = self._take_back(lost)
            self._tell(f"{_counted(lost)} waited for nothing ({'; '.join(places)}), sent again")
            self._fill()
        elif (told := self._stall(now)) and self._stalled_at == launched:
            self._fill()
            self._tell(f"{told}, and nothing was to wake them: {self._attempts.launched - launched} sent now")
        self._unheld = unheld - lost
        self._stalled_at = self._attempts.launched if self._stall(now) else None
        if any([self._take_stranded(server, now) for server in self._fleet.servers]):
            self._fill()

    def _tell(self, line: str) -> None:
        self._fleet.say(f"watchdog: {line}")

    def _find_unheld(self, now: float) -> set[Row]:
        """Return the rows that have not ended, do not wait for a slot, and for which nothing is to come.

        What comes is a reply, a server's check, or the end of a pause.
        """
        attempts = self._attempts
        rows = {row for home in self._backlog.lanes if not home.ended.done() for row in home.rows}
        rows -= self._backlog.waiting() | attempts.refusals.asking
        rows -= {row for row, until in attempts.pausing.items() if until >= now}
        for server in self._fleet.servers:
            rows -= {f.row for f in server.flights.values() if f.task is not None and not f.task.done()}
            rows -= set(attempts.unresolved.get(server.url, ())) if server.state == CHECKING else set()
        return rows

    def _take_back(self, rows: set[Row]) -> list[str]:
        """Let rows be sent again; return how many stood where."""
        attempts = self._attempts
        places = {"after a pause": rows & attempts.pausing.keys()}
        for server in self._fleet.servers:
            dead = {rid: f.row for rid, f in server.flights.items() if f.row in rows}
            unresolved = attempts.unresolved.pop(server.url, [])
            attempts.unresolved[server.url] = [row for row in unresolved if row not in rows]
            places[f"{server.url} without an answer"] = {*dead.values(), *rows.intersection(unresolved)}
            for rid in dead:
                del server.flights[rid]
        places["nowhere"] = rows.difference(*places.values())
        for row in rows:
            attempts.pausing.pop(row, None)
            self._backlog.put_back(row)
        return [f"{place}: {len(there)}" for place, there in places.items() if there]

    def _take_stranded(self, server: Server, now: float) -> int:
        """Let rows be sent elsewhere, uncounted, that a server which is out keeps too long."""
        stranded = server.stranded(now)
        for flight in stranded:
            del server.flights[flight.rid]
            flight.drop("its server is out")
            self._fleet.spawn(server.client.abort(flight.rid))
            self._backlog.outcomes["transport"] += 1
            self._backlog.put_back(flight.row)
        if stranded:
            self._fleet.say(f"{server.url}: {server.state}, {len(stranded)} rows never ended: sent again")
        return len(stranded)


def _counted(rows: set[Row]) -> str:
    first = min(row.request.row_id for row in rows)
    return f"{len(rows)} rows, {first} among them," if len(rows) > 1 else f"row {first}"
