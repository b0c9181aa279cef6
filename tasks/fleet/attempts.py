"""Attempts at rows: how one is made, and what becomes of the row by how it ends."""

import asyncio
import itertools
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import numpy as np

from tasks.errors import RowError, ServerError, SurroundingsError
from tasks.fleet.fleet import Fleet
from tasks.fleet.quarantine import Backlog, OpenLane, Row
from tasks.fleet.refusals import Refusals
from tasks.fleet.server import AWAY, CLOSED, OPEN, Flight, Server
from tasks.rows.records import Completion
from tasks.rows.verdicts import Code
from tasks.sglang.clock import loop_seconds
from tasks.sglang.outcomes import AttemptError
from tasks.sglang.protocol import integrity_alarm


class Attempts:
    """All attempts of one dispatch. Each row ends once: completed, or unsent with its reason.

    Args:
        fleet: the servers.
        backlog: where rows wait.
        sampling: the job's resolved `sampling_params`.
        vocab_size: ids outside [0, vocab_size) are never sent.
        max_attempts: failed attempts of a row before it is parked as poison.
        fill: called when a slot or a row became free.
        fail: called with an error that ends the dispatch.
    """

    def __init__(
        self,
        fleet: Fleet,
        backlog: Backlog,
        sampling: dict[str, Any],
        vocab_size: int,
        max_attempts: int,
        fill: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._fleet, self._backlog, self._sampling = fleet, backlog, sampling
        self._vocab_size, self._max_attempts = vocab_size, max_attempts
        self._fill, self._fail = fill, fail
        self.refusals = Refusals(fleet, backlog, sampling, vocab_size, self._end_unsent, fill)
        self.unresolved: dict[str, list[Row]] = {}  # by server: the connection broke, is it still there?
        self.pausing: dict[Row, float] = {}  # until when, in the loop's seconds
        self._tasks: set[asyncio.Task[None]] = set()
        mine = uuid.uuid4().hex[:20]  # a UUID of its own for each attempt is a system call a row
        self._rids = (f"{mine}{number:012x}" for number in itertools.count())
        self.launched = self.finished = self.unsent = self.prompt_tokens = self.output_tokens = 0

    def launch(self, server: Server, row: Row) -> None:
        """Send one row to one server, without waiting; a row that earlier runs spent is parked instead."""
        if row.attempts >= self._max_attempts:
            self._end_unsent(row, Code.POISON, f"{row.attempts} attempts failed in earlier runs")
            return
        flight = Flight(next(self._rids), row, server.cap(row.request), loop_seconds(), 2.0**row.lost)
        row.tries += 1
        self.launched += 1
        server.flights[flight.rid] = flight
        flight.task = asyncio.get_running_loop().create_task(self._attempt(server, flight))
        self._tasks.add(flight.task)
        flight.task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    async def _attempt(self, server: Server, flight: Flight) -> None:
        row: Row = flight.row
        request = row.request
        if flight.cap < request.max_new_tokens:
            request = attrs.evolve(request, max_new_tokens=flight.cap)
        try:
            completion = await server.client.generate(request, self._sampling, self._vocab_size, flight.rid)
        except asyncio.CancelledError:
            if server.flights.pop(flight.rid, None) is None or not flight.given_up:
                raise
            row.failed_at |= {server.url}
            row.lost += 1
            self._spend(row, "lost", f"{server.url}: {flight.given_up}")
            self._fleet.spawn(server.client.abort(flight.rid))
        except (RowError, ServerError, SurroundingsError) as error:
            server.flights.pop(flight.rid, None)
            if isinstance(error, AttemptError) and error.outcome == "cut":
                row.cut_at = loop_seconds() - flight.started
            self._failed(server, row, error)
        else:
            server.flights.pop(flight.rid, None)
            if flight.disowned:
                self._backlog.put_back(row)
            else:
                self._completed(server, row, completion)
        self._fill()

    def refuse(self, row: Row) -> None:
        """End a row whose prompt fits no server that is left."""
        servers = self._fleet.servers
        told = ", ".join(f"{s.url}: {s.lengths.longest_prompt}" for s in servers if s.lengths)
        detail = (
            f"expected a prompt that a server takes (ids at most: {told}), got {row.request.input_ids.size}"
        )
        self._end_unsent(row, Code.PROMPT_TOO_LONG, detail)

    async def call_off(self, flights: list[Flight]) -> None:
        """Stop waiting for replies and tell the servers to drop the requests."""
        rids = {flight.rid for flight in flights}
        told = []
        for server in self._fleet.servers:
            mine = [server.flights.pop(rid) for rid in list(server.flights) if rid in rids]
            for flight in mine:
                flight.drop("called off")
            if server.state not in (AWAY, CLOSED):
                told += [server.client.abort(flight.rid) for flight in mine]
        tasks = [flight.task for flight in flights if flight.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*told)

    async def close(self) -> None:
        """Call everything off."""
        await self.call_off([f for server in self._fleet.servers for f in server.flights.values()])
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _completed(self, server: Server, row: Row, completion: Completion) -> None:
        served = completion.facts["weight_version"]
        probed = server.report.info.weight_version if server.report else ""
        if served and probed and served != probed:
            self._backlog.put_back(row)
            self._fleet.evict(server, f"its weights changed from {probed!r} to {served!r}", drop=False)
            return
        server.answered(completion)
        if (held := self._backlog.suspects.get(server.url)) is not None:
            self._condemn(server, held.condemn(row))
        if (alarm := integrity_alarm(completion, self._vocab_size)) and server.raise_alarm(loop_seconds()):
            self._fleet.evict(server, f"{row.request.row_id}: {alarm}", drop=False)
        self.finished += 1
        self.prompt_tokens += completion.input_ids.size
        self.output_tokens += completion.output_ids.size
        self._hand_over(row, completion)

    def _hand_over(self, row: Row, completion: Completion) -> None:
        completion.facts["attempts"] = row.tries
        home = row.home
        if home.ended.done() or row not in home.rows:
            return  # a row ends once
        home.rows.discard(row)
        try:
            rest = home.lane.finished(completion)
        except Exception as error:  # noqa: BLE001  the lane's own failure belongs to whoever runs the lane
            home.ended.set_exception(error)
            return
        if rest is None:
            home.settled()
            return
        task = asyncio.ensure_future(rest)  # the row's slot is free meanwhile
        home.following.add(task)
        task.add_done_callback(partial(self._followed, home))

    def _followed(self, home: OpenLane, task: "asyncio.Future[None]") -> None:
        home.following.discard(task)
        if home.ended.done():
            return
        if task.cancelled():
            home.ended.cancel()
        elif (error := task.exception()) is not None:
            home.ended.set_exception(error)
        else:
            home.settled()
            self._fill()

    def _end_unsent(self, row: Row, code: str, detail: str, offset: int = -1) -> None:
        self.unsent += 1
        request, nothing = row.request, np.zeros(0, np.int32)
        ended = Completion(request.row_id, request.input_ids, nothing, "unsent", None, code, offset, detail)
        self._hand_over(row, ended)

    def _failed(self, server: Server, row: Row, error: Exception) -> None:
        if isinstance(error, RowError):
            self.refusals.refused(server, row, error)
        elif not isinstance(error, AttemptError):
            self._backlog.put_back(row)
            self._fleet.close(server, error)
        elif error.outcome in ("transport", "cut") and server.state not in (AWAY, CLOSED):
            self.unresolved.setdefault(server.url, []).append(row)
            self._fleet.doubt(server, str(error))
        elif error.outcome in ("transport", "cut") or not error.counts:
            self._backlog.outcomes[error.outcome] += 1
            self._backlog.put_back(row)
            self._not_taken(server, error)
        else:
            row.failed_at |= {server.url}
            self._spend(row, error.outcome, str(error))
            self._count_failure(server, str(error))

    def _not_taken(self, server: Server, error: AttemptError) -> None:
        """Leave a full server alone for a while; look whether one that did not connect is still there."""
        if error.outcome != "busy":
            self._fleet.doubt(server, str(error))
            return
        now = loop_seconds()
        server.refused_as_busy(now)
        busy = now - (server.busy_since or now)
        if server.state == OPEN and busy > server.patience.busy_seconds:
            self._fleet.evict(server, f"it takes no rows for {busy:.0f} s: {error}", drop=False)
        else:
            self._wake_when_free(server)

    def _wake_when_free(self, server: Server) -> None:
        """Fill its slots once it may be asked again: a timer of uvloop fires up to a millisecond early."""
        left = server.busy_until - loop_seconds()
        if left > 0:
            asyncio.get_running_loop().call_later(left, self._wake_when_free, server)
        else:
            self._fill()

    def _count_failure(self, server: Server, why: str) -> None:
        """Ask for a fresh probe after too many failed attempts in a row."""
        server.failures_in_a_row += 1
        times = server.failures_in_a_row
        if times >= server.patience.breaker_failures:
            self._fleet.evict(server, f"{times} attempts failed in a row, the last: {why}", drop=False)

    def _spend(self, row: Row, outcome: str, why: str, *, alone: bool = False) -> None:
        """Count a failed attempt against its row; park the row when that was the last."""
        self._backlog.outcomes[outcome] += 1
        row.attempts += 1
        if row.home.ended.done():
            return
        row.home.lane.attempt_failed(row.request, outcome, alone)
        if row.attempts >= self._max_attempts:
            detail = f"given up after {row.attempts} of {self._max_attempts} failed attempts; the last: {why}"
            self._end_unsent(row, Code.POISON, detail)
        elif alone:
            self._backlog.put_back(row)
        else:
            pause = self._fleet.settings.patience.backoff(row.attempts - 1)
            self.pausing[row] = loop_seconds() + pause
            asyncio.get_running_loop().call_later(pause, self._resume, row)

    def _resume(self, row: Row) -> None:
        if self.pausing.pop(row, None) is not None:
            self._backlog.put_back(row)
        self._fill()

    def on_alive(self, server: Server) -> None:
        """Count the attempts whose connection broke although the server lives."""
        rows = self.unresolved.pop(server.url, [])
        cut = [row for row in rows if row.cut_at is not None]
        broken = [row for row in rows if row.cut_at is None]
        self.refusals.cut(server, cut)
        for row in broken:
            row.failed_at |= {server.url}
            self._spend(row, "transport", f"{server.url}: the connection broke before the whole reply")

    def on_out(self, server: Server) -> None:
        """Hand back, uncounted, the rows whose connection broke: nobody will find out any more why."""
        for row in self.unresolved.pop(server.url, []):
            self._backlog.outcomes["transport"] += 1
            self._backlog.put_back(row)

    def on_down(self, server: Server) -> None:
        """Hold the rows that were in flight when a server died as suspects."""
        victims = self.unresolved.pop(server.url, [])
        for flight in list(server.flights.values()):
            del server.flights[flight.rid]
            victims.append(flight.row)
            flight.drop("the server is down")
        if victims:
            self._backlog.outcomes["crash"] += len(victims)
            self._backlog.held(server.url).add([row for row in victims if not row.home.ended.done()])

    def on_admitted(self, server: Server) -> None:
        """Judge the row that was alone at a crash: the control prompt (the probe) has just survived.

        If there is a row that no crash was blamed on, it goes first, alone: only when the server completes it
        does the crash count. If it dies again, it is the server, and nothing counts.
        """
        held = self._backlog.held(server.url)
        if not self._backlog.call_witness(held):
            self._condemn(server, held.condemn())

    def _condemn(self, server: Server, row: Row | None) -> None:
        if row is not None:
            self._spend(row, "crash", f"{server.url} died with only this row in flight", alone=True)
