"""The fault table: rows through an embedded server that misbehaves, over real sockets.

Every row of the table ends with each request finished exactly once. The server honours seeds, so what a fault
leaves behind must equal, id for id, what an undisturbed run gave: nothing lost, doubled or invented.
"""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from deployments.standin.launch import Standin
from tasks.errors import SurroundingsError, UnfaithfulError
from tasks.fleet.dispatch import Dispatch
from tasks.fleet.ensure import ensure_servers
from tasks.fleet.fleet import Fleet
from tasks.sglang.protocol import integrity_alarm
from tests.support.embedded import (
    COUNT,
    MODEL,
    PLAN,
    FewLane,
    Nursery,
    Right,
    fleet_settings,
    ids_by_row,
    rows,
    send,
    switch,
)
from tests.support.scripted import ListLane


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
        pytest.param({"flood": "*2"}, 2, id="gigantic body"),
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


@pytest.mark.parametrize("shape", ["object", "string", "message"])
async def test_a_refusal_that_is_not_the_rows_parks_nothing(quiet: Standin, right: Right, shape: str) -> None:
    """A server refuses three requests, whatever they hold: all rows are made, none of them is charged."""
    lane = ListLane(rows(COUNT))
    stats = await send(lane, fleet_settings(quiet.url), {"bad_request": f"{shape}*3"})
    assert ids_by_row(list(lane.by_row().values())) == right
    assert lane.failures == []
    assert stats.outcomes["refused"] >= 1


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
    lane = FewLane(rows(COUNT))
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


async def test_other_weights_end_the_run(quiet: Standin) -> None:
    """A weight version that changes during the job: no row of the new weights is kept."""
    lane = ListLane(rows(COUNT))
    with pytest.raises(UnfaithfulError, match="weights changed"):
        await send(lane, fleet_settings(quiet.url), {"weight_version": "step-2"})
    assert {c.facts["weight_version"] for c in lane.completions} <= {"default"}


async def test_a_reply_that_drips_is_made_again(quiet: Standin, right: Right) -> None:
    """Slow loris: a reply that never ends is given up after its deadline, and the row is sent again."""
    lane = ListLane(rows(COUNT))
    await send(lane, fleet_settings(quiet.url), {"drip": "*2"}, max_attempts=20)
    assert ids_by_row(list(lane.by_row().values())) == right
    assert len(lane.failures) >= 2  # a busy machine may make others look overdue
    assert {outcome for _, outcome, _ in lane.failures} == {"lost"}


async def test_a_full_queue_costs_no_attempt(nursery: Nursery, right: Right) -> None:
    """`--max-queued-requests`: the server refuses what does not fit; every row is made, none is counted."""
    standin = nursery.start("--max-running-requests", "2", "--max-queued-requests", "2")
    lane = ListLane(rows(COUNT))
    stats = await send(lane, fleet_settings(standin.url))
    assert ids_by_row(list(lane.by_row().values())) == right
    assert lane.failures == []
    assert stats.outcomes["busy"] >= 1


async def test_another_model_is_refused(nursery: Nursery, tmp_path: Path) -> None:
    """Another name and another tokenisation of the prompt: the job's ids would mean something else there."""
    other = tmp_path / "other"
    shutil.copytree(MODEL, other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    tokenizer["model"]["merges"] = []
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    standin = nursery.start("--model-path", str(other))
    with pytest.raises(UnfaithfulError, match=f"serves another model: {other}"):
        await ensure_servers(fleet_settings(standin.url))


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
        words = "servers.api_key_env names is wrong" if key else "an API key and none is set"
        with pytest.raises(SurroundingsError, match=words):
            await send(lane, fleet_settings(standin.url, api_key=key))


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
