"""Where rows come from and where they wait: lanes, rows, and the backlog between lanes and servers."""

import asyncio
import math
from collections import Counter, deque
from collections.abc import Awaitable
from typing import Protocol

import attrs

from tasks.rows.records import Completion, Request


class Lane(Protocol):
    """One batch as dispatch sees it: a source of requests and a taker of completions.

    All methods are called on the event loop and must be quick. Between them a lane must make progress by
    itself: when nothing of it is in flight or waiting, `take` gives a request or `done` is true.
    """

    @property
    def done(self) -> bool:
        """Whether every row of the lane is finished."""
        ...

    def take(self) -> Request | None:
        """Return the next ready request, None when none is ready now."""
        ...

    def finished(self, completion: Completion) -> Awaitable[None] | None:
        """Keep a completion; this may make new requests ready, at once or when what it returns is done.

        Until then the row counts as on its way: the lane waits for it, and nothing else does.
        """
        ...

    def attempt_failed(self, request: Request, outcome: str, alone: bool) -> None:
        """Note a failed attempt that counts against the row.

        Args:
            request: the row.
            outcome: how it failed.
            alone: the server died with only this row in flight, and a control prompt then survived.
        """
        ...

    def attempts(self, row_id: str) -> int:
        """Return the failed attempts of a row that count, noted by earlier runs too."""
        ...


@attrs.define(slots=True, eq=False)
class OpenLane:
    """A lane that is being run.

    Args:
        lane: the caller's.
        ended: resolved when the lane is done or broken.
        rows: those taken from it that have not ended: in flight, in the backlog, or pausing.
        following: what is being done for rows that ended.
        dry: its last `take` gave nothing, and nothing of it has finished since.
    """

    lane: Lane
    ended: "asyncio.Future[None]"
    rows: "set[Row]" = attrs.field(factory=set)
    dry: bool = False
    following: "set[asyncio.Future[None]]" = attrs.field(factory=set)

    @property
    def is_stuck(self) -> bool:
        """Whether nothing of it is on its way and nothing more comes of itself, yet nobody was told."""
        return self.dry and not self.rows and not self.following and not self.ended.done()

    def settled(self) -> None:
        """Take in that one of its rows has ended, with all that followed it."""
        self.dry = False
        if self.lane.done and not self.ended.done():
            self.ended.set_result(None)

    async def call_off(self) -> None:
        """Stop what is being done for finished rows."""
        for task in self.following:
            task.cancel()
        await asyncio.gather(*self.following, return_exceptions=True)


@attrs.define(slots=True, eq=False)
class Row:
    """One row on its way to a completion.

    Args:
        home: its lane.
        request: what to send.
        attempts: failed attempts that count against it.
        tries: all attempts, for provenance.
        last: how the last attempt failed, for a person.
        suspect: URL of the server that died with it in flight, "" when none did.
        blamed: it was alone in flight when a server died.
        failed_at: URLs of the servers where an attempt failed: it goes to another one while there is such.
        refused: how a server refused it that took a control prompt then, "" when none did.
        cut_at: seconds after which what stands in front of a server cut its answer, None when nothing did.
        lost: attempts given up for want of a reply; each doubles how long the next one is waited for.
    """

    home: OpenLane
    request: Request
    attempts: int = 0
    tries: int = 0
    last: str = ""
    suspect: str = ""
    blamed: bool = False
    failed_at: frozenset[str] = frozenset()
    refused: str = ""
    cut_at: float | None = None
    lost: int = 0


@attrs.define(slots=True, eq=False)
class Suspects:
    """Rows that were in flight when one server died: sent again a few at a time, with nothing else.

    A quarter of those in flight at the last crash at once: a row that kills servers is alone after few
    crashes, and an innocent crash costs one slow round.

    Args:
        url: the server that died.
        rows: to be sent again.
        most: how many of them may be in flight at once.
        accused: the row that was alone at the last crash, until the server has shown itself sound.
    """

    url: str
    rows: deque[Row]
    most: int = 1
    accused: Row | None = None

    def add(self, victims: list[Row]) -> None:
        """Take in the rows of one crash, ahead of those of earlier ones."""
        for row in victims:
            row.suspect = self.url
        self.rows.extendleft(reversed(victims))
        self.most = max(1, math.ceil(len(victims) / 4))
        self.accused = victims[0] if len(victims) == 1 else None
        if self.accused is not None:
            self.accused.blamed = True

    def condemn(self, done: Row | None = None) -> Row | None:
        """Take out and return the accused row; None when there is none, or it is the one just `done`."""
        row, self.accused = self.accused, None
        if row is None or row is done or row not in self.rows:
            return None
        self.rows.remove(row)
        return row


class Backlog:
    """Ready rows of all open lanes, lanes in arrival order, and the suspects of each server."""

    def __init__(self) -> None:
        self.lanes: list[OpenLane] = []
        self.ready: deque[Row] = deque()
        self.suspects: dict[str, Suspects] = {}
        self.outcomes: Counter[str] = Counter()

    def refill(self, most: int) -> None:
        """Take ready requests from the lanes until `most` rows are here; a lane with none is passed over."""
        for home in self.lanes:
            while not home.dry and len(self.ready) < most:
                request = home.lane.take()
                if request is None:
                    home.dry = True
                else:
                    row = Row(home, request, attempts=home.lane.attempts(request.row_id))
                    home.rows.add(row)
                    self.ready.append(row)

    def drop_lane(self, home: OpenLane) -> None:
        """Forget a lane and its rows here."""
        if home in self.lanes:
            self.lanes.remove(home)
        self.ready = deque(row for row in self.ready if row.home is not home)
        for held in self.suspects.values():
            held.rows = deque(row for row in held.rows if row.home is not home)
            if held.accused is not None and held.accused.home is home:
                held.accused = None

    def put_back(self, row: Row) -> None:
        """Let a row be sent again, ahead of the others; a suspect stays one."""
        if row.home.ended.done():
            return
        if row.suspect:
            self.held(row.suspect).rows.appendleft(row)
        else:
            self.ready.appendleft(row)

    def call_witness(self, held: Suspects) -> bool:
        """Put a row that was never alone at a crash before the accused one; False when there is none.

        A server that dies whatever it is sent would make any row look guilty: it dies of the witness too.
        """
        if held.accused is None or held.accused not in held.rows:
            return False
        self.refill(1)
        witness = next((row for row in (*held.rows, *self.ready) if not row.blamed), None)
        if witness is None:
            return False
        (self.ready if witness in self.ready else held.rows).remove(witness)
        held.rows.remove(held.accused)
        held.rows.append(held.accused)
        held.rows.appendleft(witness)
        witness.suspect = held.url
        return True

    def waiting(self) -> set[Row]:
        """Return the rows that wait here for a slot."""
        return {*self.ready, *(row for held in self.suspects.values() for row in held.rows)}

    def held(self, url: str) -> Suspects:
        """Return the suspects of one server."""
        return self.suspects.setdefault(url, Suspects(url, deque()))
