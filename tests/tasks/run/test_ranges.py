"""Which flow run makes which batches, and when: decisions alone, over a made-up plan."""

from collections import deque
from uuid import uuid4

import pytest

from tasks.errors import OperatorError, RangeError, SourceError, SurroundingsError
from tasks.run.ranges import (
    DEATHS,
    PENDING_SECONDS,
    START_SECONDS,
    BatchRange,
    RangeRun,
    Spread,
    cut_ranges,
    error_of,
    must_spread,
)
from tasks.run.retry import Again


def spread(*ranges: BatchRange, workers: int = 2) -> Spread:
    """Return a spread with all ranges waiting."""
    return Spread(deque(ranges), workers)


def start(spread: Spread) -> list[RangeRun]:
    """Start what is due."""
    runs = []
    while (part := spread.due()) is not None:
        runs.append(RangeRun(uuid4(), part))
        spread.afoot[runs[-1].run_id] = runs[-1]
    return runs


@pytest.mark.parametrize(
    ("pending", "workers", "sizes"),
    [
        pytest.param(1000, 1, [100] * 10, id="no run has more than a hundred"),
        pytest.param(250, 1, [100, 100, 50], id="the last one is smaller"),
        pytest.param(12, 3, [2] * 6, id="two ranges a worker"),
        pytest.param(2, 8, [1, 1], id="more workers than batches"),
        pytest.param(10_000, 100, [50] * 200, id="a hundred workers"),
    ],
)
def test_ranges_are_even_and_bounded(pending: int, workers: int, sizes: list[int]) -> None:
    """Every pending batch is in exactly one range, in order."""
    cut = cut_ranges(range(pending), workers)
    assert [part.batches for part in cut] == sizes
    assert [part.start for part in cut[1:]] == [part.stop for part in cut[:-1]]


def test_committed_batches_inside_a_range_do_not_count() -> None:
    """A range spans what is done already; only what was pending is work."""
    (first, second) = cut_ranges([1, 4, 5, 9], 1)
    assert (first, second) == (BatchRange(1, 5, 2), BatchRange(5, 10, 2))
    assert first.left({0, 2, 3, 4}) == 1


def test_small_jobs_stay_in_one_run() -> None:
    """One worker and up to a hundred batches need no other flow run."""
    assert [must_spread(*case) for case in ((100, 1), (101, 1), (2, 2), (1, 2), (0, 2))] == [
        False,
        True,
        True,
        False,
        False,
    ]


def test_a_half_done_range_gives_its_place_away() -> None:
    """Two workers: two ranges at first; a third when one is half done; never more than four afoot."""
    parts = [BatchRange(10 * n, 10 * n + 10, 10) for n in range(6)]
    hand = spread(*parts)
    first, _ = start(hand)
    assert start(hand) == []
    hand.seen |= set(range(4))
    assert start(hand) == []
    hand.seen |= {4}
    (third,) = start(hand)
    assert third.range == parts[2]
    hand.seen |= {*range(10, 15), *range(20, 25)}
    assert len(start(hand)) == 1
    assert len(hand.afoot) == 4
    hand.ended(first)
    assert len(start(hand)) == 1


def test_a_dead_run_is_replaced_until_too_many_have_died() -> None:
    """What it left goes to the next one, first of all; a commit in between starts the count anew."""
    part, other = BatchRange(0, 2, 2), BatchRange(2, 4, 2)
    hand = spread(part, other, workers=1)
    for _ in range(DEATHS - 1):
        (run,) = start(hand)
        assert run.range == part
        hand.died(run, "killed")
    assert list(hand.waiting) == [part, other]
    hand.waiting.remove(other)
    hand.seen |= {0}
    for _ in range(DEATHS):
        assert not hand.stopped
        (run,) = start(hand)
        hand.died(run, "killed")
    assert str(hand.stopped) == "batches [0,2): 5 flow runs died on it, the last one so: killed"


def test_a_death_after_the_last_commit_costs_nothing() -> None:
    """All of its batches have receipts: nobody takes the range again."""
    hand = spread(BatchRange(0, 1, 1))
    (run,) = start(hand)
    hand.seen |= {0}
    hand.died(run, "killed")
    assert not hand.goes_on


@pytest.mark.parametrize(
    ("since", "heard", "now", "silent"),
    [
        pytest.param(0.0, None, START_SECONDS - 1, False, id="still loading"),
        pytest.param(0.0, None, START_SECONDS + 1, True, id="never came to life"),
        pytest.param(0.0, 100.0, 150.0, False, id="heard lately"),
        pytest.param(0.0, 100.0, 191.0, True, id="silent"),
        pytest.param(180.0, 100.0, 191.0, False, id="adopted just now"),
    ],
)
def test_silence_in_the_store_is_death(since: float, heard: float | None, now: float, silent: bool) -> None:
    """A run shows itself every third of `lease_seconds` (90 here), once it has loaded its tokenizer."""
    run = RangeRun(uuid4(), BatchRange(0, 1, 1), since=since, heard=heard)
    assert run.silent(now, 90.0) is silent


def test_a_run_that_its_worker_never_began_is_replaced() -> None:
    """Pending for longer than a start may take: its worker died; the table says what it was seen to do."""
    run = RangeRun(uuid4(), BatchRange(0, 1, 1))
    assert run.state == "waits for a worker"
    assert not run.stuck(10.0)
    assert run.state == "starts"
    assert not run.stuck(10.0 + PENDING_SECONDS)
    assert run.stuck(11.0 + PENDING_SECONDS)
    run.silent(400.0, 90.0)
    assert run.state == "at work"


@pytest.mark.parametrize(
    ("state", "kind", "status"),
    [
        pytest.param("SurroundingsError", SurroundingsError, 5, id="server-or-disk"),
        pytest.param("SourceError", SourceError, 2, id="a-subclass-of-a-subclass"),
        pytest.param("Cancelled", RangeError, 1, id="by-a-person"),
        pytest.param("ServerError", RangeError, 1, id="not-one-for-a-person"),
    ],
)
def test_an_error_comes_back_as_itself(state: str, kind: type[OperatorError], status: int) -> None:
    """A flow run over a range is named after what ended it, so that the exit status is the documented one."""
    error = error_of(state, "batches [0,2): a disk is full")
    assert (type(error), error.exit_status, str(error)) == (kind, status, "batches [0,2): a disk is full")


def test_a_part_of_work_again_survives_json() -> None:
    """A range's parameter names its own batches with their generations, a hundred in less than 4 kB."""
    whole = Again(generations={n: n % 3 for n in range(100_000, 100_300)}, rejected=["nan"], look=True)
    part = whole.within(100_100, 100_200)
    text = part.model_dump_json()
    assert len(text) < 4096
    assert Again.model_validate_json(text) == part
    assert sorted(part.generations) == list(range(100_100, 100_200))
    assert (part.rejected, part.look, part.more) == (["nan"], True, 0)
