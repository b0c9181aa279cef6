"""Servers whose rows end otherwise than those of the others: a suspicion, and the paired test that decides.

Rows are compared within equal source, mix and turn: conversations and shared prefixes give servers
different rows. A server stands out by a Mantel-Haenszel test over these strata: `LEVEL` deviations (three in
a million, for it is looked at after every batch) and `EXCESS` rows more than its share.

A suspicion is told and changes nothing. Then the same rows are made on that server and on another one, anew
on both, so that no choice of rows favours one: it is closed when rows fail there only too often for chance
(McNemar's exact test, `CHANCE`), else the suspicion is withdrawn.
"""

import asyncio
import itertools
import math
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

import attrs

from tasks.errors import RawseqError, UnfaithfulError
from tasks.fleet.server import CLOSED, OPEN, Server
from tasks.rows.records import Completion, Request

LEVEL: Final = 4.5
EXCESS: Final = 8
CHANCE: Final = 0.001
PAIRS: Final = 32
"""Rows of a paired test: half of them made by the suspect, half by the others."""

AT_ONCE: Final = 8

PAIR_DEADLINES: Final = 8.0
"""One pair is waited for so many times as long as no attempt is given up for slowness: forty minutes."""

Judge = Callable[[Sequence[Completion]], list[bool]]
"""Whether each completion is whole and in its canonical form."""


@attrs.frozen(slots=True)
class Judged:
    """One row that was made and judged.

    Args:
        stratum: source, mix and turn: rows of one stratum are alike.
        url: of the server that made it.
        good: whether it is whole and in its canonical form.
        request: what was sent.
    """

    stratum: str
    url: str
    good: bool
    request: Request


class Verdicts:
    """Counts of judged rows by stratum and server."""

    def __init__(self) -> None:
        self._strata: dict[str, dict[str, list[int]]] = {}

    def add(self, row: Judged) -> None:
        """Count one row."""
        counts = self._strata.setdefault(row.stratum, {}).setdefault(row.url, [0, 0])
        counts[0] += 1
        counts[1] += not row.good

    def forget(self, url: str) -> None:
        """Count a server from nothing."""
        for servers in self._strata.values():
            servers.pop(url, None)

    def deviation(self, url: str) -> tuple[float, float]:
        """Return how many rows of a server failed beyond its share, and how many deviations that is."""
        excess = variance = 0.0
        for servers in self._strata.values():
            mine, failed = servers.get(url, (0, 0))
            total = sum(count for count, _ in servers.values())
            bad = sum(count for _, count in servers.values())
            if mine and total > mine:
                excess += failed - mine * bad / total
                variance += mine * (total - mine) * bad * (total - bad) / (total**2 * (total - 1))
        return excess, (excess - 0.5) / math.sqrt(variance) if variance > 0 else 0.0


def chance(here: int, elsewhere: int) -> float:
    """Return how likely so many of all pairs that differ fail on one side, when both sides are equal."""
    pairs = here + elsewhere
    return float(sum(math.comb(pairs, k) for k in range(here, pairs + 1)) / 2**pairs)


class Suspicions:
    """Watches the verdicts of a fleet's servers.

    Args:
        servers: all of them.
        spawn: runs background work that ends with the fleet.
        close: shuts a server out for good.
        say: takes lines for a person.
        note: keeps beside the data what was found of a server that is closed; None: nobody does.
    """

    def __init__(
        self,
        servers: Callable[[], Sequence[Server]],
        spawn: Callable[[Any], None],
        close: Callable[[Server, Exception], None],
        say: Callable[[str], None],
        note: Callable[[str, dict[str, Any]], Awaitable[None]] | None = None,
    ) -> None:
        self._servers, self._spawn, self._close, self._say, self._note = servers, spawn, close, say, note
        self._verdicts = Verdicts()
        self._recent: defaultdict[str, deque[Request]] = defaultdict(lambda: deque(maxlen=PAIRS // 2))

    def add(self, rows: Iterable[Judged], judge: Judge, sampling: dict[str, Any], vocab_size: int) -> None:
        """Take in the rows of one batch; suspect a server that stands out by now."""
        for row in rows:
            self._verdicts.add(row)
            self._recent[row.url].append(row.request)
        for server in self._servers():
            excess, deviations = self._verdicts.deviation(server.url)
            if server.state != OPEN or server.suspicion or excess < EXCESS or deviations < LEVEL:
                continue
            server.suspicion = f"{excess:.0f} rows more than its share failed ({deviations:.1f} deviations)"
            self._say(f"{server.url}: suspicion: {server.suspicion}; rows are made there and elsewhere")
            self._spawn(self._decide(server, judge, sampling, vocab_size))

    async def _decide(self, server: Server, judge: Judge, sampling: dict[str, Any], vocab_size: int) -> None:
        others = (rows for url, rows in self._recent.items() if url != server.url)
        in_turn = itertools.chain.from_iterable(itertools.zip_longest(*others))  # a row of each, again
        theirs = itertools.islice((row for row in in_turn if row is not None), PAIRS // 2)
        gate = asyncio.Semaphore(AT_ONCE)

        async def on_both(row: Request) -> tuple[bool, ...]:
            """Return how a row ended here and elsewhere; () when one of them did not make it."""
            async with gate:
                open_ = [s for s in self._servers() if s.state == OPEN and s is not server]
                if not open_:
                    return ()
                both = server, min(open_, key=Server.load)
                row = attrs.evolve(row, max_new_tokens=min(s.cap(row) for s in both))
                try:
                    async with asyncio.timeout(PAIR_DEADLINES * server.patience.deadline_floor_seconds):
                        made = [await s.client.generate(row, sampling, vocab_size) for s in both]
                except (RawseqError, TimeoutError):
                    return ()
            return tuple(judge(made))

        rows = [*self._recent[server.url], *theirs]
        pairs = [pair for pair in await asyncio.gather(*map(on_both, rows)) if pair]
        await self._settle(server, len(pairs), pairs.count((False, True)), pairs.count((True, False)))

    async def _settle(self, server: Server, pairs: int, here: int, elsewhere: int) -> None:
        told = f"of {pairs} rows made on both, {here} failed there only and {elsewhere} elsewhere only"
        if pairs < PAIRS // 4:
            self._say(f"{server.url}: suspicion not decided, looked at again later: {told}")
            server.suspicion = ""
        elif chance(here, elsewhere) >= CHANCE:
            self._say(f"{server.url}: suspicion withdrawn: {told}")
            server.suspicion = ""
            self._verdicts.forget(server.url)
        elif server.state != CLOSED:
            server.suspicion += f"; {told}"
            again = f"rawseq retry STORE --server {server.url}"
            self._close(
                server,
                UnfaithfulError(
                    f"{server.url}: its rows fail where others' do not: {told}. What it made stays; to make "
                    f"it again: {again}"
                ),
            )
            await self._keep(server)

    async def _keep(self, server: Server) -> None:
        if self._note is None or server.report is None:
            return
        try:
            await self._note(server.url, server.report.info.describe() | {"suspicion": server.suspicion})
        except RawseqError as error:  # the store's: the other servers go on
            self._say(f"{server.url}: its suspicion is not kept beside the data: {error}")
