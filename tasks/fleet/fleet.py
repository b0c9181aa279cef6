"""The open set of servers of one job: ensure, pick, doubt, evict, readmit, close."""

import asyncio
import logging
import zlib
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

import aiohttp

from tasks.errors import RawseqError, SurroundingsError, UnfaithfulError
from tasks.fleet.ensure import ServerReport, ensure_patiently
from tasks.fleet.identity import DatasetModels, Identity
from tasks.fleet.server import AWAY, CHECKING, CLOSED, OPEN, Listener, Server
from tasks.fleet.suspicion import Suspicions
from tasks.fleet.watch import Doubtful, Unfit, Wider, watch_server
from tasks.rows.lengths import LengthLimits
from tasks.rows.records import Request
from tasks.sglang.client import ServerClient, open_session
from tasks.sglang.clock import loop_seconds
from tasks.sglang.outcomes import AttemptError
from tasks.sglang.restart.revive import revive
from tasks.sglang.settings import FleetSettings, Say

log = logging.getLogger(__name__)


class Fleet:
    """The servers of one job.

    Args:
        settings: URLs, policy, probe.
        say: takes lines for a person; the module's logger when left out.
        models: what the dataset knows of its model; None: the first server's counts.
    """

    def __init__(
        self, settings: FleetSettings, say: Say | None = None, models: DatasetModels | None = None
    ) -> None:
        self.settings = settings
        self.servers: tuple[Server, ...] = ()
        self.say: Say = say or log.info
        self.listener: Listener | None = None
        note = None if models is None else models.admitted
        self.suspicions = Suspicions(lambda: self.servers, self.spawn, self.close, self.say, note)
        self._identity = Identity(settings.plan, models, self.say)
        self._session: aiohttp.ClientSession | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._weights: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        access = self.settings.access
        self._session = open_session(access)
        self.servers = tuple(
            Server(
                ServerClient(url, access, self._session),
                self.settings.patience,
                self.settings.in_flight,
                self.settings.sharers,
            )
            for url in self.settings.servers.urls
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run background work that ends with the fleet."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the fleet failed", exc_info=error)
            reason = error if isinstance(error, Exception) else RuntimeError(repr(error))
            for server in self.servers:
                self.close(server, reason)

    async def ensure(self) -> tuple[ServerReport, ...]:
        """Make the servers fit; return the reports of those that are, in the order of the URLs.

        Returns when all are, or when some are and the others kept them waiting for `join_seconds`: those join
        later by themselves.

        Raises:
            SurroundingsError: none was ready in time, or one cannot be used as configured.
            UnfaithfulError: one of them is not fit for token data.
        """
        tasks = {asyncio.ensure_future(self._open(server)): server for server in self.servers}
        pending, begun = set(tasks), loop_seconds()
        try:
            while pending:
                waits = self.settings.patience.join_seconds if self.open() else None
                done, pending = await asyncio.wait(
                    pending, timeout=waits, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    self._settle(task, tasks[task], last=not pending)
                if not done and loop_seconds() - begun >= self.settings.patience.join_seconds:
                    break
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
        await self._identity.begin()
        for task in pending:
            tasks[task].shut(AWAY)
            self.spawn(self._recover(tasks[task]))
        return tuple(s.report for s in self.servers if s.state == OPEN and s.report)

    def _settle(self, task: "asyncio.Task[None]", server: Server, *, last: bool) -> None:
        error = task.exception()
        if error is None:
            return
        if isinstance(error, SurroundingsError) and (self.open() or not last):
            self.say(str(error))
            server.shut(AWAY, error)
            self.spawn(self._recover(server))
            return
        raise error

    async def _open(self, server: Server) -> None:
        report = await ensure_patiently(server.client, self.settings, self.say)
        if server.state == CLOSED:
            return  # meanwhile, for good
        known = self._weights.setdefault(server.url, report.info.weight_version)
        if known != report.info.weight_version:
            raise UnfaithfulError(
                f"{server.url}: its weights changed during the job: {known!r} before, "
                f"{report.info.weight_version!r} now"
            )
        await self._identity.admit(server.client, report)
        if server.state == CLOSED:
            return
        server.admit(report)
        self._watch_over(server)
        if self.listener:
            self.listener.on_admitted(server)
        self.changed()

    def _watch_over(self, server: Server) -> None:
        self.spawn(self._watch(server))
        self.spawn(self._prove(server))

    async def _prove(self, server: Server) -> None:
        """Look now and then whether an open server still is what it was when it was let in."""
        epoch, patience, asked = server.epoch, server.patience, loop_seconds()
        while True:
            await asyncio.sleep(patience.info_seconds)
            due = loop_seconds() - asked >= patience.fingerprint_seconds
            made = server.finished
            fault = await self._fault(server, ask=due) if server.epoch == epoch else ""
            if server.state != OPEN or server.epoch != epoch:
                return
            if fault:
                server.disown()
                self.evict(server, fault, drop=False)
                return
            if due and fault is not None:
                asked, server.proved = loop_seconds(), made

    async def _fault(self, server: Server, *, ask: bool) -> str | None:
        """Return why a server is not the one that was let in, "" where it is, None where it tells nothing."""
        if server.report is None:
            return None
        try:
            info = await server.client.info()
            if info != server.report.info and not info.tells_less(server.report.info):
                told = f"it was started anew or changed: {info.model_path}, SGLang {info.version}"
            else:
                told = await self._identity.fault(server.client, server.report) if ask else ""
        except (AttemptError, SurroundingsError):
            return None
        made = server.finished - server.proved
        return f"{told}; {made} rows that it made since its model was last known are in doubt" if told else ""

    async def _watch(self, server: Server) -> None:
        async for seen in watch_server(server):
            match seen:
                case Wider():
                    self.changed()
                case Doubtful(why):
                    self.doubt(server, why)
                case Unfit(why, drop):
                    self.evict(server, why, drop=drop)

    def changed(self) -> None:
        """Tell the dispatch that a slot may be free."""
        if self.listener:
            self.listener.fill()

    def open(self) -> list[Server]:
        """Return the servers that passed and are not in doubt."""
        return [server for server in self.servers if server.state == OPEN]

    def pick(self, affinity: str, roomy: list[Server]) -> Server:
        """Return the server for one row: the affinity's own if it has room, else the least loaded.

        Args:
            affinity: rows with equal affinity prefer one server; "" for no preference.
            roomy: open servers with room, at least one.
        """
        if len(roomy) == 1:
            return roomy[0]
        if affinity:
            own = max(self.open(), key=lambda s: zlib.crc32(f"{affinity}\0{s.url}".encode()))
            if own in roomy:
                return own
        return min(roomy, key=Server.load)

    def lengths(self) -> LengthLimits:
        """Return the lengths of the widest server that is left; unknown where one has not told its own."""
        left = [s.lengths for s in self.servers if s.state != CLOSED]
        return LengthLimits.widest(limits or LengthLimits() for limits in left)

    def may_take(self, request: Request) -> bool:
        """Whether a server takes such a prompt, or may come to: not one that is gone for too long."""
        long_ago = loop_seconds() - self.settings.servers.ready_timeout_seconds
        return any(
            s.takes(request) and s.state != CLOSED and not (s.state == AWAY and s.away_since < long_ago)
            for s in self.servers
        )

    def capacity(self) -> int:
        """Rows in flight allowed over all open servers."""
        return sum(server.window.limit for server in self.open())

    def failure(self) -> Exception | None:
        """Return why no server will answer any more, None while one may."""
        hopeful = [s for s in self.servers if s.state != CLOSED]
        if not hopeful:
            return next((s.error for s in self.servers if s.error), SurroundingsError("no server is left"))
        if any(s.state != AWAY for s in hopeful):
            return None
        now, limit = loop_seconds(), self.settings.servers.ready_timeout_seconds
        if all(now - s.away_since > limit for s in hopeful):
            told = "; ".join(
                f"{s.url} for {now - s.away_since:.0f} s ({s.error or 'no answer'})" for s in hopeful
            )
            return SurroundingsError(f"no server answers any more: {told}")
        return None

    def doubt(self, server: Server, why: str) -> None:
        """Stop sending to a server and find out whether it is still there."""
        if server.state == OPEN:
            server.state = CHECKING
            self.say(f"{server.url}: in doubt: {why}")
            self.spawn(self._check(server, why))

    async def _check(self, server: Server, why: str) -> None:
        patience = self.settings.patience
        for times in range(patience.check_tries):
            state, seen = await server.client.health(timeout_seconds=patience.health_seconds)
            if server.state != CHECKING:
                return
            if state == "ready":
                made, fault = server.finished, await self._fault(server, ask=True)
                if server.state != CHECKING:
                    return  # taken out meanwhile: it comes in again by a fresh probe only
                if fault == "":
                    server.proved = made
                    self._alive(server)
                    return
                if fault is not None:
                    self.evict(server, f"{why}; {fault}")
                    return
                seen = "it did not say what it is"  # no room for it, maybe
            if state in ("absent", "foreign") and times > 0:
                break
            await asyncio.sleep(patience.backoff(times))
        self.evict(server, f"{why}; {seen}")

    def _alive(self, server: Server) -> None:
        server.reopen()
        if self.listener:
            self.listener.on_alive(server)
        self.changed()
        self._watch_over(server)

    def evict(self, server: Server, why: str, *, drop: bool = True, error: Exception | None = None) -> None:
        """Take a server out on evidence; a fresh probe takes it in again.

        Args:
            server: which.
            why: the evidence.
            drop: whether its rows in flight are given up (it crashed or hangs), or may still end.
            error: what to say when it does not come back.
        """
        was_in = server.state not in (AWAY, CLOSED)
        if was_in:
            server.evictions += 1
            server.shut(AWAY, error or SurroundingsError(f"{server.url}: {why}"))
            self.say(f"{server.url}: evicted: {why}")
        if self.listener:
            (self.listener.on_down if drop else self.listener.on_out)(server)
        if was_in:
            self.spawn(self._recover(server))
        self.changed()

    def close(self, server: Server, error: Exception) -> None:
        """Shut a server out for good."""
        if server.state != CLOSED:
            server.shut(CLOSED, error)
            self.say(f"{server.url}: closed: {error}")
        if self.listener:
            self.listener.on_out(server)
        self.changed()

    async def _recover(self, server: Server) -> None:
        times = 0
        while server.state == AWAY:
            try:
                if server.started is not None and self.settings.servers.restart_crashed:
                    again = await revive(server.client, server.started, self.settings, self.say)
                    server.started = again.process if again else server.started
                await self._open(server)
            except UnfaithfulError as error:
                self.close(server, error)
            except RawseqError as error:
                server.error = error
                self.changed()
                await asyncio.sleep(self.settings.patience.backoff(times))
                times += 1
