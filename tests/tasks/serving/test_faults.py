"""The fault table: rows through an embedded server that misbehaves, over real sockets.

Every row of the table ends with each request finished exactly once. The server honours seeds, so what a fault
leaves behind must equal, id for id, what an undisturbed run gave: nothing lost, doubled or invented.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from deployments.standin.faults import FAULTS
from deployments.standin.launch import Standin
from tasks.errors import SurroundingsError, UnfaithfulError
from tasks.serving.dispatch import Dispatch
from tasks.serving.ensure import ensure_servers
from tasks.serving.fleet import Fleet
from tasks.serving.protocol import integrity_alarm
from tests.tasks.serving.embedded import (
    PLAN,
    Nursery,
    counters,
    fleet_settings,
    ids_by_row,
    rows,
    send,
    switch,
)
from tests.tasks.serving.scripted import QUICK, ListLane

COUNT = 24

Right = dict[str, list[int]]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standin]:
    """One embedded server for all faults that leave its process alive."""
    nursery = Nursery(tmp_path_factory.mktemp("standin"))
    yield nursery.start()
    nursery.end()


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    """Servers of one test."""
    nursery = Nursery(tmp_path)
    yield nursery
    nursery.end()


@pytest.fixture(scope="module")
def right(shared: Standin) -> Right:
    """What an undisturbed run gives, id for id."""
    lane = ListLane(rows(COUNT))
    asyncio.run(send(lane, fleet_settings(shared.url)))
    return ids_by_row(list(lane.by_row().values()))


@pytest.fixture
async def quiet(shared: Standin) -> AsyncIterator[Standin]:
    """The shared server, with all switches off after the test."""
    yield shared
    await switch(shared.url, **dict.fromkeys(ALL_SWITCHES))


ALL_SWITCHES = tuple(
    name for name in FAULTS if not name.startswith(("loading", "refuse", "keepalive", "crash"))
)


@pytest.mark.parametrize(
    ("faults", "failures"),
    [
        pytest.param({"queue_full": "*40"}, 0, id="503 storm: no attempt is spent"),
        pytest.param({"error_500_text": "*7"}, 7, id="500 as text"),
        pytest.param({"abort_200": "aborted*7"}, 7, id="200 abort with partial ids"),
        pytest.param({"abort_200": "queue*7"}, 7, id="200 abort in the queue"),
        pytest.param({"abort_200": "unavailable*7"}, 7, id="200 abort with status 503"),
        pytest.param({"empty_ids": "*7"}, 7, id="empty ids"),
        pytest.param({"no_output_ids": "*7"}, 7, id="no output_ids, as in 0.4.x"),
        pytest.param({"wrong_json": "*7"}, 7, id="wrong JSON"),
        pytest.param({"truncate_body": "*5"}, 5, id="truncated body"),
        pytest.param({"reset_before_reply": "*5"}, 5, id="reset before the reply"),
        pytest.param({"reset_after_reply": "*5"}, None, id="reset after the reply"),
        pytest.param({"slow_reply": "0.2*5"}, 0, id="slow replies are waited for"),
        pytest.param({"lost_reply": "*3"}, 3, id="replies lost, health fine"),
        pytest.param({"extra_meta": True}, 0, id="keys that nobody knows"),
        pytest.param({"missing_optional_meta": True}, 0, id="optional keys missing"),
    ],
)
async def test_a_fault_costs_attempts_and_no_row(
    quiet: Standin, right: Right, faults: dict[str, Any], failures: int | None
) -> None:
    """Every row once, with the ids of the undisturbed run; exactly as many attempts spent as faults acted."""
    lane = ListLane(rows(COUNT))
    await send(lane, fleet_settings(quiet.url), faults)
    assert ids_by_row(list(lane.by_row().values())) == right
    if failures is None:  # a reset may overtake the reply that it follows
        assert len(lane.failures) <= 5
    else:
        assert len(lane.failures) == failures
    assert not any(alone for _, _, alone in lane.failures)


@pytest.mark.parametrize(
    ("faults", "code", "count"),
    [
        *[
            pytest.param({"bad_request": f"{shape}*3"}, "poison", 3, id=f"400 as {shape}")
            for shape in ("object", "string", "message")
        ],
    ],
)
async def test_a_refused_request_ends_as_poison(
    quiet: Standin, right: Right, faults: dict[str, Any], code: str, count: int
) -> None:
    """A 400 is never retried: that row is parked with the server's words, all others are made."""
    lane = ListLane(rows(COUNT))
    await send(lane, fleet_settings(quiet.url), faults)
    ended = lane.by_row()
    parked = [c for c in ended.values() if not c.sent]
    assert [c.code for c in parked] == [code] * count
    assert all("HTTP 400" in c.detail for c in parked)
    kept = {row: ids for row, ids in right.items() if ended[row].sent}
    assert ids_by_row([c for c in ended.values() if c.sent]) == kept


@pytest.mark.parametrize(
    ("faults", "word"),
    [
        pytest.param({"nan_stop": "*3"}, "NaN happened", id="NaN stop"),
        pytest.param({"prompt_tail": "5*3"}, "output ids", id="prompt tail before the output"),
        pytest.param({"wrong_prompt_tokens": "*3"}, "prompt ids", id="another prompt length"),
        pytest.param({"big_id": "*3"}, "vocabulary", id="id outside the vocabulary"),
    ],
)
async def test_broken_ids_are_kept_with_their_facts_and_the_server_is_probed_again(
    quiet: Standin, right: Right, faults: dict[str, Any], word: str
) -> None:
    """What was corrupted stays recognisable by its facts; the server is probed afresh."""
    lane = ListLane(rows(COUNT))
    stats = await send(lane, fleet_settings(quiet.url), faults)
    ended = lane.by_row()
    broken = {row: told for row, c in ended.items() if (told := integrity_alarm(c, PLAN.vocab_size))}
    # some of the switch's three times may fall to the fresh probe
    assert 1 <= len(broken) <= 3
    assert all(word in told for told in broken.values())
    whole = {row: c.output_ids.tolist() for row, c in ended.items() if row not in broken}
    assert whole == {row: ids for row, ids in right.items() if row not in broken}
    assert stats.servers[0]["evictions"] >= 1


async def test_lasting_corruption_ends_the_run_with_the_evidence(quiet: Standin) -> None:
    """A server that begins to put prompt ids before its output is shut out; the run says why."""
    lane = ListLane(rows(COUNT))
    with pytest.raises(UnfaithfulError, match="output_count"):
        await send(lane, fleet_settings(quiet.url), {"prompt_tail": "5"})


async def test_a_server_that_fails_everything_is_asked_again_without_burning_rows(
    quiet: Standin, right: Right
) -> None:
    """500 to everything opens the breaker; when it is over, every row is made."""
    opened = asyncio.Event()

    def note(line: str) -> None:
        if "failed in a row" in line:
            opened.set()

    async def mend() -> None:
        await opened.wait()
        await switch(quiet.url, error_500_text=None)

    lane = ListLane(rows(COUNT))

    async with Fleet(fleet_settings(quiet.url), note) as fleet:
        await fleet.ensure()
        await switch(quiet.url, error_500_text=True)
        async with Dispatch(fleet, PLAN.sampling, PLAN.vocab_size, 5) as dispatch:
            mending = asyncio.ensure_future(mend())
            await dispatch.run(lane)
            await mending
    assert ids_by_row(list(lane.by_row().values())) == right


async def test_a_server_that_hangs_is_evicted_and_taken_back(quiet: Standin, right: Right) -> None:
    """A stuck scheduler: its rows wait, then are made; no attempt is spent."""
    evicted = asyncio.Event()

    def note(line: str) -> None:
        if "stands still" in line:
            evicted.set()

    lane = ListLane(rows(COUNT))
    async with Fleet(fleet_settings(quiet.url, info_timeout_seconds=2.0), note) as fleet:
        await fleet.ensure()
        await switch(quiet.url, hang=True)
        async with Dispatch(fleet, PLAN.sampling, PLAN.vocab_size, 5) as dispatch:
            running = asyncio.ensure_future(dispatch.run(lane))
            async with asyncio.timeout(60):
                await evicted.wait()
                await switch(quiet.url, hang=None)
                await running
    assert ids_by_row(list(lane.by_row().values())) == right
    assert lane.failures == []


async def test_a_process_that_answers_nothing_is_left_for_the_other(nursery: Nursery, right: Right) -> None:
    """One of two servers accepts and answers nothing: its rows go to the other, no attempt is spent."""
    first, second = nursery.start(), nursery.start()
    lane = ListLane(rows(COUNT))
    patience = attrs.evolve(QUICK, silent_looks=1, check_tries=1)
    async with Fleet(fleet_settings(first.url, second.url, patience=patience)) as fleet:
        await fleet.ensure()
        await switch(first.url, deaf=True)
        async with Dispatch(fleet, PLAN.sampling, PLAN.vocab_size, 5) as dispatch, asyncio.timeout(90):
            await dispatch.run(lane)
    assert ids_by_row(list(lane.by_row().values())) == right
    assert lane.failures == []


async def test_other_weights_end_the_run(quiet: Standin) -> None:
    """A weight version that changes during the job: no row of the new weights is kept."""
    lane = ListLane(rows(COUNT))
    with pytest.raises(UnfaithfulError, match="weights changed"):
        await send(lane, fleet_settings(quiet.url), {"weight_version": "step-2"})
    assert {c.facts["weight_version"] for c in lane.completions} <= {"default"}


async def test_another_model_name_is_told(quiet: Standin) -> None:
    """A server that names another model but tokenises alike passes with a note."""
    await switch(quiet.url, wrong_model="/models/other")
    (report,) = await ensure_servers(fleet_settings(quiet.url))
    assert "/models/other" in " ".join(report.warnings)


@pytest.mark.parametrize(
    ("key", "fine"), [("k1", True), ("k2", False), (None, False)], ids=["right", "wrong", "none"]
)
async def test_an_api_key_is_needed(nursery: Nursery, right: Right, key: str | None, fine: bool) -> None:
    """The right key makes rows; a wrong or missing one is a person's matter, told at once."""
    standin = nursery.start("--api-key", "k1")
    lane = ListLane(rows(COUNT))
    if fine:
        await send(lane, fleet_settings(standin.url, api_key=key))
        assert ids_by_row(list(lane.by_row().values())) == right
    else:
        with pytest.raises(SurroundingsError, match="key is missing or wrong"):
            await send(lane, fleet_settings(standin.url, api_key=key))


async def test_a_loading_server_is_waited_for(nursery: Nursery, right: Right) -> None:
    """`/health` is 503 for a while: nothing is sent before, everything after."""
    standin = nursery.start("--fault", "loading_seconds=3")
    lane = ListLane(rows(COUNT))
    await send(lane, fleet_settings(standin.url))
    assert ids_by_row(list(lane.by_row().values())) == right


async def test_a_crash_in_the_middle_costs_only_what_was_in_flight(nursery: Nursery, right: Right) -> None:
    """The process dies on its tenth row and is started again by its keeper: every row once, none counted."""
    standin = nursery.start()
    lane = ListLane(rows(COUNT))
    sending = asyncio.ensure_future(send(lane, fleet_settings(standin.url), {"crash_on_request": "10"}))
    await asyncio.to_thread(nursery.start_again, standin)
    stats = await sending
    assert ids_by_row(list(lane.by_row().values())) == right
    assert lane.failures == []
    assert stats.outcomes["crash"] <= 10  # one window
    made = await counters(standin.url)
    assert made["generations_finished"] <= COUNT + 10 + 6


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
    """Its prompt kills the process whenever it comes; the keeper starts it again. It alone is parked."""
    lane = ListLane(rows(COUNT))
    killer = lane.requests[9]
    unique = (set(killer.input_ids.tolist()) - {i for r in rows(COUNT) if r.row_id != killer.row_id
                                                 for i in r.input_ids.tolist()}) or None  # fmt: skip
    assert unique is None, "an ordinary prompt shares its ids with others"
    marked = killer.input_ids.copy()
    marked[1] = 1999
    lane.requests[9] = type(killer)(killer.row_id, marked, killer.max_new_tokens, killer.seed)
    fault = ("--fault", "crash_on_id=1999")
    standin = nursery.start(*fault)

    over = asyncio.Event()

    async def keep() -> None:
        alive = standin
        while not over.is_set():
            if alive.process.poll() is None:
                await asyncio.wait([asyncio.ensure_future(over.wait())], timeout=0.1)
            else:
                alive = await asyncio.to_thread(nursery.start_again, alive, *fault)

    keeping = asyncio.ensure_future(keep())
    try:
        async with asyncio.timeout(120):
            await send(lane, fleet_settings(standin.url), max_attempts=2)
    finally:
        over.set()
        await keeping
    ended = lane.by_row()
    assert ended.pop(killer.row_id).code == "poison"
    assert ids_by_row(list(ended.values())) == {r: ids for r, ids in right.items() if r != killer.row_id}
    assert lane.failures == [(killer.row_id, "crash", True)] * 2


async def test_idle_connections_closed_by_the_server_cost_nothing(nursery: Nursery) -> None:
    """The server closes idle connections after a moment; rows that come later are still sent once each."""
    standin = nursery.start("--fault", "keepalive=1")

    async with Fleet(fleet_settings(standin.url)) as fleet:
        await fleet.ensure()
        async with Dispatch(fleet, PLAN.sampling, PLAN.vocab_size, 5) as dispatch:
            for turn in range(3):
                lane = ListLane(rows(4, first=4 * turn))
                await dispatch.run(lane)
                assert all(c.sent for c in lane.by_row().values())
                await asyncio.sleep(1.2)  # longer than the server keeps idle connections
