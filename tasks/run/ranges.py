"""A big job as many flow runs, each over a range of batches: who gets what, who starts when, who has died.

Nothing here decides what is done: the ledger does. A range that is made twice, or by two at once, costs
work and changes nothing, so all of this may be wrong for a while, as after a crash of the run that hands
ranges out.
"""

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from math import ceil
from multiprocessing.process import BaseProcess
from typing import Any, Final
from uuid import UUID

import attrs

from tasks.errors import OperatorError, RangeError
from tasks.ledger.fence import STALLED_LEASES, last_sign
from tasks.run.retry import Retry, rows_made
from tasks.run.run import Run

RANGE_BATCHES: Final = 100
"""Most batches of one flow run: with five task runs a batch, and three more, it stays near 500 task runs."""

RANGES_PER_WORKER: Final = 2
"""A small job is cut so fine that a worker that is early has something left to take."""

SPAWN_SECONDS: Final = 60.0
"""A flow run of a process of this machine, found Pending, runs by then: else it was never started."""

START_SECONDS: Final = 900.0
"""A flow run that is said to run shows itself by then: before, it may be loading a tokenizer from afar."""

PENDING_SECONDS: Final = 300.0
"""A flow run that a worker has taken runs by then: before, the worker may be pulling an image, or be busy."""

LINKED_RANGES: Final = 400
"""Flow runs that stand on the page of the run that started them, each as one of its task runs."""

INCOMPLETE: Final = "Incomplete"
"""Name of the failed state of a flow run of which single batches failed while the others went on."""

DEATHS: Final = 5
"""A range whose flow runs died so often, with nothing committed in between, is given up."""


@attrs.frozen(slots=True)
class BatchRange:
    """Neighbouring pending batches that one flow run makes.

    Args:
        start: number of its first batch.
        stop: number behind its last one.
        batches: how many batches of [start, stop) were pending.
    """

    start: int
    stop: int
    batches: int

    @property
    def name(self) -> str:
        """Name for people: half-open range of batch numbers."""
        return f"batches [{self.start},{self.stop})"

    def left(self, committed: Collection[int]) -> int:
        """Return how many of its batches have no receipt."""
        return sum(number not in committed for number in range(self.start, self.stop))


def must_spread(pending: int, workers: int) -> bool:
    """Whether so many batches are too much for one flow run, or are to be made by several at once."""
    return pending > 1 and (workers > 1 or pending > RANGE_BATCHES)


def cut_ranges(pending: Sequence[int], workers: int) -> tuple[BatchRange, ...]:
    """Cut the numbers of pending batches, ascending, into ranges of equal size."""
    size = min(RANGE_BATCHES, max(1, ceil(len(pending) / (RANGES_PER_WORKER * workers))))
    parts = [pending[first : first + size] for first in range(0, len(pending), size)]
    return tuple(BatchRange(part[0], part[-1] + 1, len(part)) for part in parts)


@attrs.define(slots=True, eq=False)
class RangeRun:
    """A flow run that makes a range.

    Args:
        run_id: its flow run, and by that its name among the job's workers.
        range: what it makes.
        process: it, when it is a process of this machine that this run has started.
        gone: that process was seen to have ended.
        taken: when a worker was first seen to have taken it, monotonic seconds; None: it waits for one.
        since: when it was first seen to run, monotonic seconds; None: it does not yet.
        heard: when it last showed itself in the store, monotonic seconds; None: not yet.
        waited: that it is silent and waited for was told.
    """

    run_id: UUID
    range: BatchRange
    process: BaseProcess | None = None
    gone: bool = False
    taken: float | None = None
    since: float | None = None
    heard: float | None = None
    waited: bool = False

    @property
    def state(self) -> str:
        """What it was last seen to do, for people."""
        if self.since is not None:
            return "at work"
        return "waits for a worker" if self.taken is None else "starts"

    def stuck(self, now: float, seconds: float = PENDING_SECONDS) -> bool:
        """Whether what was to run it must have died before it ran; called while it is Pending."""
        self.taken = now if self.taken is None else self.taken
        return now - self.taken > seconds

    def silent(self, now: float, lease_seconds: float) -> bool:
        """Whether it must be dead by its silence in the store; called while it is said to run."""
        self.since = now if self.since is None else self.since
        if self.heard is None:
            return now - self.since > START_SECONDS
        return now - max(self.heard, self.since) > lease_seconds

    def limit(self, lease_seconds: float) -> float:
        """Return for how many seconds it may be silent while its process lives, which keeps its journals."""
        return START_SECONDS if self.heard is None else STALLED_LEASES * lease_seconds


@attrs.define(slots=True, eq=False)
class Spread:
    """Ranges that wait and ranges that are being made.

    Args:
        waiting: ranges that no flow run makes, in order.
        workers: ranges in their first half at once.
        afoot: flow runs under way.
        seen: numbers of batches that need nothing more.
        started: flow runs started so far.
        stopped: why no further range is started; None while they are.
        deaths: flow runs that died on a range since a batch of it was last committed.
    """

    waiting: deque[BatchRange]
    workers: int
    afoot: dict[UUID, RangeRun] = attrs.field(factory=dict)
    seen: set[int] = attrs.field(factory=set)
    started: int = 0
    stopped: OperatorError | None = None
    deaths: Counter[tuple[BatchRange, int]] = attrs.field(factory=Counter)

    @property
    def goes_on(self) -> bool:
        """Whether anything is under way or to be started."""
        return bool(self.afoot) or bool(self.waiting and not self.stopped)

    def due(self) -> BatchRange | None:
        """Take the next range that may start now, if there is one.

        A range that is half done gives its place away, so that the next one is under way before its last
        rows are: no tail is a barrier, and at most two ranges per worker are afoot.
        """
        left = [(each.range.left(self.seen), each.range.batches) for each in self.afoot.values()]
        first_half = sum(2 * missing > batches for missing, batches in left)
        full = first_half >= self.workers or len(left) >= 2 * self.workers
        return None if full or self.stopped or not self.waiting else self.waiting.popleft()

    def table(self) -> list[dict[str, Any]]:
        """Return a row for each flow run under way, and one for the ranges that wait."""
        rows: list[dict[str, Any]] = [
            {
                "batches": each.range.name,
                "flow run": str(each.run_id),
                "left": f"{each.range.left(self.seen)} of {each.range.batches}",
                "state": each.state,
            }
            for each in self.afoot.values()
        ]
        waiting = sum(part.batches for part in self.waiting)
        return [*rows, {"batches": f"{len(self.waiting)} further ranges", "left": waiting, "state": "wait"}]

    def ended(self, each: RangeRun) -> None:
        """Note that a flow run came to its end, whatever it left."""
        del self.afoot[each.run_id]

    def died(self, each: RangeRun, why: str) -> None:
        """Let another flow run make the range of one that died, unless too many have."""
        self.ended(each)
        left = each.range.left(self.seen)
        self.deaths[each.range, left] += 1
        if not left:
            return
        if self.deaths[each.range, left] >= DEATHS:
            last = f"{DEATHS} flow runs died on it, the last one so: {why}"
            self.stopped = RangeError(f"{each.range.name}: {last}")
        else:
            self.waiting.appendleft(each.range)


def count_committed(
    run: Run, seen: set[int], wanted: Mapping[int, int], retries: Mapping[int, Retry]
) -> None:
    """Read the receipts that are new since the last look, and count them in the run's progress.

    Args:
        run: the current run.
        seen: batches that needed nothing more at the last look; the new ones are added.
        wanted: generation of the receipt that is to be made, by number of the batch.
        retries: those of them that are made again.
    """
    for number, generation in sorted(run.ledger.committed().items()):
        if number in seen or generation < wanted.get(number, generation + 1):
            continue
        receipt, retry = run.ledger.receipt(number, generation), retries.get(number)
        rows = made = receipt.rows["total"]
        if retry is not None and retry.generation:
            made = rows_made(run.ledger.receipt(number, retry.generation - 1), receipt, retry)
        run.progress.took(receipt.stop - receipt.start, rows, made, receipt.tokens["output"])
        seen.add(number)


def listen(run: Run, each: RangeRun, now: float) -> None:
    """Note when a flow run last showed itself in the job's store; `now` is monotonic seconds."""
    age = last_sign(run.store, str(each.run_id))
    if age is not None:
        each.heard = now - age


def error_of(state: str, message: str) -> OperatorError:
    """Return the error with which a flow run over a range ended, which is the name of its state.

    Any other name (Cancelled, say) gives a RangeError.
    """
    kinds, known = [OperatorError], dict[str, type[OperatorError]]()
    while kinds:
        kind = kinds.pop()
        known[kind.__name__] = kind
        kinds += kind.__subclasses__()
    return known.get(state, RangeError)(message)
