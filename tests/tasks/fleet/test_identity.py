"""One dataset, one model: servers are known by what they think of fixed ids, not by what they are called."""

import asyncio
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from aiohttp import web

from tasks.errors import JobError, UnfaithfulError
from tasks.fleet.dispatch import Dispatch
from tasks.fleet.fleet import Fleet
from tasks.fleet.server import AWAY, CLOSED, OPEN
from tasks.ledger.noted_servers import ServedModels, models_of, noted_servers
from tasks.rows.records import Request
from tasks.sglang.fingerprint import IDS, Fingerprint, asked_ids, compare, is_gibberish
from tasks.store.folder import FolderStore
from tests.support.scripted import (
    PLAN,
    PROMPT,
    QUICK,
    VOCAB,
    ListLane,
    Scripted,
    assert_right,
    requests,
    right_ids,
    scripted_server,
    settings,
)

ASKED = tuple(range(130))
BRISK = attrs.evolve(QUICK, info_seconds=0.05, fingerprint_seconds=0.1, join_seconds=0.2)


def _models(store: FolderStore, *allowed: str) -> ServedModels:
    return ServedModels(store, asyncio.to_thread, allowed)


async def _send(fleet: Fleet, lane: ListLane) -> None:
    async with Dispatch(fleet, PLAN.sampling, VOCAB, 5) as dispatch, asyncio.timeout(60):
        await dispatch.run(lane)


async def _until(fleet: Fleet, number: int, state: str) -> None:
    """Wait until a server of a fleet is in a state: nothing tells a test of it."""
    while fleet.servers[number].state != state:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("nats", "spread", "outcome"),
    [
        pytest.param(0.0, 0.0, "same", id="itself"),
        pytest.param(0.066, 0.0, "same", id="8 bits"),
        pytest.param(0.15, 0.0, "unclear", id="1 to 2 % noise"),
        pytest.param(0.47, 0.0, "other", id="5 % noise"),
        pytest.param(9.0, 0.0, "other", id="another model"),
        pytest.param(0.2, 0.09, "same", id="a model that differs from itself"),
        pytest.param(0.3, 0.09, "unclear", id="further than that"),
        pytest.param(0.51, 1.0, "other", id="no spread explains it"),
    ],
)
def test_what_a_difference_means(nats: float, spread: float, outcome: str) -> None:
    """The limits follow what the first server differs from itself, up to where nothing explains it."""
    first = Fingerprint("a", ASKED, (-2.0,) * 128, spread)
    assert compare(first, Fingerprint("b", ASKED, (-2.0 - nats,) * 128)) == outcome


def test_a_few_wild_ids_are_no_other_model() -> None:
    """One id counts one nat at most; other ids cannot be compared at all."""
    first = Fingerprint("a", ASKED, (-2.0,) * 128)
    wild = Fingerprint("a", ASKED, (-30.0,) * 10 + (-2.0,) * 118)
    assert compare(first, wild) == "same"
    assert compare(first, Fingerprint("a", ASKED[1:], (-2.0,) * 128)) == "other"
    assert Fingerprint.read(first.describe()) == first


def test_what_is_asked() -> None:
    """The question, 64 ids of the text (again where it is short), 64 ordinary ids that never change."""
    ids = asked_ids(PROMPT, np.arange(4, 24), VOCAB, frozenset(range(80, VOCAB)))
    assert ids[:3].tolist() == PROMPT.tolist()
    assert ids[3 : 3 + IDS].tolist() == [4 + at % 20 for at in range(IDS)]
    assert ids.size == 3 + 2 * IDS
    assert ids[-IDS:].max() < 80
    assert (
        ids[-4:].tolist() == asked_ids(PROMPT, np.arange(9), VOCAB, frozenset(range(80, VOCAB)))[-4:].tolist()
    )
    assert is_gibberish(Fingerprint("a", ASKED, (-9.0,) * 128), 8000) != is_gibberish(
        Fingerprint("a", ASKED, (-8.0,) * 128), 8000
    )


async def test_two_servers_with_other_weights_do_not_make_one_dataset() -> None:
    """The same names, other weights: refused, both named, before a row is sent."""
    async with scripted_server() as one, scripted_server() as two:
        two.model = 1
        two.info["model_path"] = "/models/other"
        async with Fleet(settings(one.url, two.url, patience=BRISK)) as fleet:
            with pytest.raises(UnfaithfulError, match="another model") as caught:
                await fleet.ensure()
        assert "/models/tiny (" in str(caught.value)
        assert "/models/other (" in str(caught.value)
        assert not one.rows
        assert not two.rows


async def test_a_dataset_stays_with_its_model_until_a_person_names_another(tmp_path: Path) -> None:
    """A later run of the job: refused, let in by name, noted; a name that nobody refused is an error."""
    store = FolderStore(tmp_path)
    async with scripted_server() as server:

        async def ensure(*allowed: str) -> None:
            async with Fleet(settings(server.url), None, _models(store, *allowed)) as fleet:
                await fleet.ensure()

        await ensure()
        server.model = 1
        with pytest.raises(UnfaithfulError) as caught:
            await ensure()
        name = str(caught.value).split("allow_models: [")[1][:8]
        with pytest.raises(JobError, match="00000000"):
            await ensure("00000000")
        await ensure(name)
        noted = [each["fingerprint"] for each in noted_servers(store)]
        assert {each["name"] for each in noted} > {name}
        assert all(each["outcome"] == "same" for each in noted)


async def test_a_server_that_comes_back_with_other_weights_makes_no_more_rows() -> None:
    """Killed and replaced on the same address, the same names: closed; the other server makes the rest."""
    async with scripted_server() as one, scripted_server() as two:

        async def die(body: dict[str, Any], before: int) -> None:
            if before == 2:
                two.bounce(model=1)
            await asyncio.sleep(0.02)

        two.hook = die
        async with Fleet(settings(one.url, two.url, patience=BRISK)) as fleet:
            await fleet.ensure()
            lane = ListLane(requests(60))
            await _send(fleet, lane)
            await _until(fleet, 1, CLOSED)
        assert "another model" in str(fleet.servers[1].error)
        assert_right(lane)


async def test_weights_that_change_without_a_word_are_found_out() -> None:
    """Nothing breaks and nothing is told: the next asking finds it, and says how many rows are in doubt."""
    told: list[str] = []
    async with scripted_server() as server:

        async def change(body: dict[str, Any], before: int) -> None:
            server.model = int(before >= 5)
            await asyncio.sleep(0.02)

        server.hook = change
        async with Fleet(settings(server.url, patience=BRISK), told.append) as fleet:
            await fleet.ensure()
            with pytest.raises(UnfaithfulError, match="another model"):
                await _send(fleet, ListLane(requests(400)))
    assert any("rows that it made since its model was last known are in doubt" in line for line in told)


@pytest.mark.parametrize("at_once", [False, True], ids=["one after the other", "at once"])
async def test_two_runs_that_begin_before_a_row_is_made_are_of_one_model(
    tmp_path: Path, at_once: bool
) -> None:
    """Two processes of one job, no row made yet, each with a server of another model: one of them ends."""
    store = FolderStore(tmp_path)
    async with scripted_server() as one, scripted_server() as two:
        two.model = 1
        async with (
            Fleet(settings(one.url), None, _models(store)) as early,
            Fleet(settings(two.url), None, _models(store)) as late,
        ):
            begun = [early.ensure(), late.ensure()]
            ended = [*await asyncio.gather(*(begun if at_once else begun[:1]), return_exceptions=True)]
            ended += await asyncio.gather(*(begun[len(ended) :]), return_exceptions=True)
    (refusal,) = [each for each in ended if isinstance(each, BaseException)]
    assert isinstance(refusal, UnfaithfulError)
    assert "another model" in str(refusal)
    assert len(models_of(store)) == 1


async def test_a_run_that_never_began_decides_nothing(tmp_path: Path) -> None:
    """Two models at its start, so it ends: afterwards the dataset may be of either."""
    store = FolderStore(tmp_path)
    async with scripted_server() as one, scripted_server() as two:
        two.model = 1
        async with Fleet(settings(one.url, two.url), None, _models(store)) as fleet:
            with pytest.raises(UnfaithfulError):
                await fleet.ensure()
        assert not models_of(store)
        for url in (two.url, two.url):
            async with Fleet(settings(url), None, _models(store)) as fleet:
                await fleet.ensure()


async def test_a_later_release_that_asks_otherwise_knows_the_model_again(tmp_path: Path) -> None:
    """Servers are asked what the dataset's first one was asked."""
    store = FolderStore(tmp_path)
    earlier = attrs.evolve(PLAN, fingerprint_ids=PLAN.fingerprint_ids[::-1].copy())
    async with scripted_server() as server:
        async with Fleet(attrs.evolve(settings(server.url), plan=earlier), None, _models(store)) as fleet:
            await fleet.ensure()
        async with Fleet(settings(server.url), None, _models(store)) as fleet:
            await fleet.ensure()
        server.model = 1
        async with Fleet(settings(server.url), None, _models(store)) as fleet:
            with pytest.raises(UnfaithfulError, match="another model"):
                await fleet.ensure()


async def test_rows_in_flight_on_another_model_are_made_again() -> None:
    """They were begun before it was found out: what comes of them counts no more."""
    found_out = asyncio.Event()
    async with scripted_server() as one, scripted_server() as two:

        async def change(body: dict[str, Any], before: int) -> web.StreamResponse:
            two.model = 1
            await found_out.wait()
            return web.json_response(two.reply(body) | {"output_ids": right_ids([*body["input_ids"], 1])})

        two.hook = change
        async with Fleet(settings(one.url, two.url, patience=BRISK)) as fleet:
            await fleet.ensure()
            lane = ListLane(requests(20))
            sending = asyncio.ensure_future(_send(fleet, lane))
            await _until(fleet, 1, CLOSED)
            found_out.set()
            await sending
        assert two.rows
        assert_right(lane)
        assert not lane.failures


async def test_a_server_that_once_says_less_of_itself_goes_on() -> None:
    """`/server_info` is 503 for a moment: that is no other server, and its rows count."""
    told: list[str] = []
    async with scripted_server() as server:

        async def fail_once(body: dict[str, Any], before: int) -> None:
            server.info_fails = int(before == 5) or server.info_fails
            await asyncio.sleep(0.02)

        server.hook = fail_once
        async with Fleet(settings(server.url, patience=BRISK), told.append) as fleet:
            await fleet.ensure()
            lane = ListLane(requests(100))
            await _send(fleet, lane)
        assert server.info_fails == 0
    assert_right(lane)
    assert not told


async def test_a_server_in_doubt_that_is_full_is_asked_again() -> None:
    """It lives, and has no room for the question what it is: no reason to take it out."""
    told: list[str] = []
    async with (
        scripted_server() as server,
        Fleet(settings(server.url, patience=BRISK), told.append) as fleet,
    ):
        await fleet.ensure()
        right, full = server.reply, iter(range(2))

        def reply(body: dict[str, Any], **changes: Any) -> dict[str, Any]:
            if next(full, None) is not None:
                raise web.HTTPServiceUnavailable
            return right(body, **changes)

        server.reply = reply  # type: ignore[method-assign]
        fleet.doubt(fleet.servers[0], "a test")
        await _until(fleet, 0, OPEN)
    assert next(full, None) is None
    assert not any("evicted" in line for line in told)


async def test_a_server_that_joins_late_is_noted_and_takes_what_fits_it(tmp_path: Path) -> None:
    """A shorter context costs no row that another server takes; its own rows are cut to its own room."""
    store = FolderStore(tmp_path)
    async with scripted_server() as wide, scripted_server() as late:
        late.context, late.health_gate = 150, asyncio.Event()
        for server in (wide, late):
            server.info |= {"max_req_input_len": None}
        long = [Request(f"l:{i}#t0~s0", np.full(145, 2, np.int32), 16, seed=i) for i in range(20)]
        lane = ListLane([*requests(20), *long])
        settled = settings(wide.url, late.url, patience=BRISK)
        async with Fleet(settled, None, _models(store)) as fleet:
            await fleet.ensure()
            late.health_gate.set()
            await _until(fleet, 1, OPEN)
            assert fleet.lengths().context_length == 512
            await _send(fleet, lane)
        assert_right(lane)
        assert {each["url"] for each in noted_servers(store)} == {wide.url, late.url}
        sent = [len(body["input_ids"]) for body in late.rows]
        assert sent
        assert max(sent) == 3


async def test_a_row_that_fits_no_server_is_told_so() -> None:
    """Rendered for a server that was not there yet: it ends with the lengths of all, and the run goes on."""
    async with scripted_server() as one, scripted_server() as two:
        one.context = two.context = 150
        too_long = Request("l:0#t0~s0", np.full(400, 2, np.int32), 16, seed=0)
        one.info |= {"max_req_input_len": None}
        two.info |= {"max_req_input_len": None}
        async with Fleet(settings(one.url, two.url, patience=BRISK)) as fleet:
            await fleet.ensure()
            lane = ListLane([too_long, *requests(8)])
            await _send(fleet, lane)
    ended = lane.by_row()["l:0#t0~s0"]
    assert (ended.code, ended.sent) == ("prompt_too_long", False)
    assert f"{one.url}: 143" in ended.detail


async def test_a_server_that_is_evicted_while_it_is_asked_is_not_opened_unprobed() -> None:
    """In doubt, asked what it is, and evicted meanwhile: only a fresh probe lets it in again."""
    async with scripted_server() as server, Fleet(settings(server.url, patience=BRISK)) as fleet:
        await fleet.ensure()
        probed = _probes(server)
        server.info_gate = asyncio.Event()
        fleet.doubt(fleet.servers[0], "a test")
        await server.info_asked.wait()
        fleet.evict(fleet.servers[0], "a test")
        assert fleet.servers[0].state == AWAY
        server.info_gate.set()
        await _until(fleet, 0, OPEN)
        assert _probes(server) > probed


def _probes(server: Scripted) -> int:
    return sum("logit_bias" in body["sampling_params"] for body in server.seen)


@pytest.mark.parametrize(
    "answer",
    [
        {"input_token_logprobs": "x" * (1 << 20)},
        {},
        {"input_token_logprobs": [[float("nan"), 1, None]] * 129},
    ],
    ids=["far too much", "nothing", "no numbers"],
)
async def test_a_server_that_tells_no_log_probabilities_goes_on(
    answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told that its model is not known, and nobody waits."""
    told: list[str] = []
    monkeypatch.setattr(Scripted, "_scores", lambda self, ids, start: answer)
    async with scripted_server() as server, Fleet(settings(server.url), told.append) as fleet:
        async with asyncio.timeout(20):
            await fleet.ensure()
        lane = ListLane(requests(4))
        await _send(fleet, lane)
        assert_right(lane)
    assert any("it tells no log probabilities" in line for line in told)
