"""Outages over real sockets: servers that hang, drain, die and come back.

Each test ends with every row finished once, with the ids of an undisturbed run.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import pytest

from deployments.standin.launch import Standin
from tasks.fleet.dispatch import Dispatch
from tasks.fleet.fleet import Fleet
from tests.support.embedded import (
    BRISK,
    COUNT,
    PLAN,
    FewLane,
    Nursery,
    Right,
    counters,
    fleet_settings,
    ids_by_row,
    rows,
    send,
    switch,
)
from tests.support.scripted import ListLane

STEADY = attrs.evolve(BRISK, stale_seconds=20.0, lost_seconds=20.0, deadline_floor_seconds=60.0)
"""For tests that count whom a crash is blamed on: a busy machine must not look like a hang."""

PROBE_REQUESTS = 5
"""What the probe sends to `/generate`: closer, end, last id, natural answer, tokenizer."""


@asynccontextmanager
async def kept(nursery: Nursery, flags: Callable[[int], tuple[str, ...]]) -> AsyncIterator[Standin]:
    """A server that is started again whenever it ends, with flags by the number of earlier starts."""
    over, standin, starts = asyncio.Event(), nursery.start(*flags(0)), 1

    async def keep() -> None:
        nonlocal starts
        alive = standin
        while not over.is_set():
            if alive.process.poll() is None:
                await asyncio.wait([asyncio.ensure_future(over.wait())], timeout=0.1)
            else:
                alive = await asyncio.to_thread(nursery.start_again, alive, *flags(starts))
                starts += 1

    keeping = asyncio.ensure_future(keep())
    try:
        yield standin
    finally:
        over.set()
        await keeping


@pytest.mark.parametrize("begun", [False, True], ids=["before the first prefill", "with rows decoding"])
async def test_a_server_that_hangs_is_evicted_and_taken_back(
    quiet: Standin, right: Right, begun: bool
) -> None:
    """A stuck scheduler, whose snapshot stands still: its rows wait, then are made; no attempt is spent."""
    evicted = asyncio.Event()

    def note(line: str) -> None:
        if "stands still" in line:
            evicted.set()

    lane = ListLane(rows(COUNT))
    async with Fleet(fleet_settings(quiet.url, info_timeout_seconds=5.0), note) as fleet:
        await fleet.ensure()
        if not begun:
            await switch(quiet.url, hang=True)
        async with Dispatch(fleet, PLAN.sampling, PLAN.vocab_size, 5) as dispatch:
            running = asyncio.ensure_future(dispatch.run(lane))
            async with asyncio.timeout(180):
                if begun:
                    await lane.some.wait()
                    await switch(quiet.url, hang=True)
                await evicted.wait()
                await switch(quiet.url, hang=None)
                await running
    assert ids_by_row(list(lane.by_row().values())) == right
    assert lane.failures == []


@pytest.mark.parametrize("seconds", [86400.0, -86400.0], ids=["ahead", "back"])
async def test_a_clock_that_jumps_changes_nothing(
    quiet: Standin, right: Right, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With rows in flight the server's clock jumps by a day, and ours the other way: nothing is given up."""
    lane, real = ListLane(rows(COUNT)), time.time
    async with Fleet(fleet_settings(quiet.url)) as fleet:
        await fleet.ensure()
        async with Dispatch(fleet, PLAN.sampling, PLAN.vocab_size, 5) as dispatch:
            running = asyncio.ensure_future(dispatch.run(lane))
            await lane.some.wait()
            monkeypatch.setattr(time, "time", lambda: real() - seconds)
            await switch(quiet.url, clock_jump=seconds)
            await running
            stats = dispatch.stats()
    assert ids_by_row(list(lane.by_row().values())) == right
    assert (lane.failures, stats.outcomes, stats.servers[0]["evictions"]) == ([], {}, 0)


async def test_a_restart_in_the_middle_costs_nothing(nursery: Nursery, right: Right) -> None:
    """SIGTERM: rows in flight end, no more are sent, so that it can go; its successor makes the rest."""
    standin = nursery.start("--fault", "slow_reply=4.0")  # longer than a look takes on a busy machine
    lane = FewLane(rows(COUNT))
    sending = asyncio.ensure_future(send(lane, fleet_settings(standin.url, patience=STEADY)))
    await lane.some.wait()
    standin.process.terminate()
    await asyncio.to_thread(standin.process.wait, 120)
    assert len(lane.completions) < COUNT
    await asyncio.to_thread(nursery.start_again, standin)
    stats = await sending
    assert ids_by_row(list(lane.by_row().values())) == right
    assert (lane.failures, stats.outcomes) == ([], {})


async def test_a_crash_loop_is_no_rows_fault(
    nursery: Nursery, right: Right, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six starts end at their first row, whichever that is; the seventh makes them all.

    The row before the first that is made may look guilty once.
    """
    monkeypatch.setenv("STANDIN_HEALTH_SECONDS", "0.1")
    lane, loop = ListLane(rows(COUNT)), ("--fault", f"crash_on_request={PROBE_REQUESTS + 1}")
    async with kept(nursery, lambda starts: loop if starts < 6 else ()) as standin, asyncio.timeout(600):
        settings = fleet_settings(standin.url, patience=STEADY)
        stats = await send(lane, settings, max_attempts=2)
    assert ids_by_row(list(lane.by_row().values())) == right
    assert len(lane.failures) <= 1
    assert stats.servers[0]["evictions"] == 6


async def test_a_process_that_answers_nothing_is_left_for_the_other(nursery: Nursery, right: Right) -> None:
    """One of two servers accepts and answers nothing: its rows go to the other, no attempt is spent."""
    first, second = nursery.start(), nursery.start()
    lane = ListLane(rows(COUNT))
    patience = attrs.evolve(BRISK, look_seconds=3.0, health_seconds=5.0, silent_looks=1, check_tries=1)
    async with Fleet(fleet_settings(first.url, second.url, patience=patience)) as fleet:
        await fleet.ensure()
        await switch(first.url, deaf=True)
        async with Dispatch(fleet, PLAN.sampling, PLAN.vocab_size, 5) as dispatch, asyncio.timeout(180):
            await dispatch.run(lane)
    assert ids_by_row(list(lane.by_row().values())) == right
    assert lane.failures == []


async def test_a_loading_server_is_waited_for(nursery: Nursery, right: Right) -> None:
    """`/health` is 503 for a while: nothing is sent before, everything after."""
    standin = nursery.start("--fault", "loading_seconds=3")
    lane = ListLane(rows(COUNT))
    await send(lane, fleet_settings(standin.url))
    assert ids_by_row(list(lane.by_row().values())) == right


async def test_a_crash_in_the_middle_costs_only_what_was_in_flight(nursery: Nursery, right: Right) -> None:
    """The process dies on its tenth row and is started again by its keeper: every row once, none counted."""
    standin = nursery.start()
    lane = FewLane(rows(COUNT))
    sending = asyncio.ensure_future(send(lane, fleet_settings(standin.url), {"crash_on_request": "10"}))
    await asyncio.to_thread(nursery.start_again, standin)
    stats = await sending
    assert ids_by_row(list(lane.by_row().values())) == right
    assert lane.failures == []
    assert stats.outcomes["crash"] <= 8
    made = await counters(standin.url)
    assert made["generations_finished"] <= COUNT + 8 + 6


async def test_of_two_servers_one_dies(nursery: Nursery, right: Right) -> None:
    """The other finishes the job; no attempt is spent."""
    first, second = nursery.start(), nursery.start()
    lane = ListLane(rows(COUNT))
    await switch(first.url, crash_on_request="12")
    await send(lane, fleet_settings(first.url, second.url))
    assert ids_by_row(list(lane.by_row().values())) == right
    assert lane.failures == []


async def test_all_die_and_come_back(nursery: Nursery, right: Right) -> None:
    """Both servers die; the job pauses, and goes on when they are there again."""
    both = nursery.start(), nursery.start()
    lane = ListLane(rows(COUNT))
    sending = asyncio.ensure_future(
        send(lane, fleet_settings(*(s.url for s in both)), {"crash_on_request": "6"})
    )
    await asyncio.gather(*(asyncio.to_thread(nursery.start_again, standin) for standin in both))
    await sending
    assert ids_by_row(list(lane.by_row().values())) == right
    assert lane.failures == []


async def test_a_row_that_kills_the_server_is_parked(nursery: Nursery, right: Right) -> None:
    """Its prompt kills the process whenever it comes; a supervisor starts it again. It alone is parked."""
    lane = ListLane(rows(COUNT))
    killer = lane.requests[9]
    assert all(1999 not in row.input_ids for row in lane.requests)
    marked = killer.input_ids.copy()
    marked[1] = 1999
    lane.requests[9] = type(killer)(killer.row_id, marked, killer.max_new_tokens, killer.seed)
    async with kept(nursery, lambda _: ("--fault", "crash_on_id=1999")) as standin, asyncio.timeout(600):
        await send(lane, fleet_settings(standin.url, patience=STEADY), max_attempts=2)
    ended = lane.by_row()
    assert ended.pop(killer.row_id).code == "poison"
    assert ids_by_row(list(ended.values())) == {r: ids for r, ids in right.items() if r != killer.row_id}
    assert lane.failures == [(killer.row_id, "crash", True)] * 2
