"""What a table of single requests cannot show, on both servers: aborts, rids, disconnects, parity."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.contract.cases import GREEDY, QUESTION
from tests.support.embedded import prompt

LONG = {"temperature": 0.0, "max_new_tokens": 2500, "ignore_eos": True}  # four of them fit the pool
SLOTS = 4
QUESTIONS = (
    "What is 7+5?",
    "What is 12-4?",
    "Tom has 5 pens and loses 2. How many are left?",
    "Name a colour.",
    "Hello!",
    "Write one sentence about rain.",
    "What comes after Monday?",
    "Add 15 and 27.",
)


@pytest.fixture(params=["stand-in", pytest.param("genuine", marks=pytest.mark.sglang)])
def url(request: pytest.FixtureRequest) -> str:
    """Either server."""
    return str(request.getfixturevalue("standin_url" if request.param == "stand-in" else "genuine_url"))


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """One client session."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:
        yield session


async def generate(
    session: aiohttp.ClientSession, url: str, rid: str, params: dict[str, Any], ids: list[int] = QUESTION
) -> tuple[int, dict[str, Any]]:
    """Send one generation; return status and body."""
    body = {"input_ids": ids, "rid": rid, "sampling_params": params}
    async with session.post(f"{url}/generate", json=body) as answer:
        return answer.status, await answer.json()


async def rank(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    """Return the first rank of `/v1/loads`."""
    async with session.get(f"{url}/v1/loads?include=core") as answer:
        return dict((await answer.json())["loads"][0])


async def until(session: aiohttp.ClientSession, url: str, running: int, waiting: int) -> None:
    """Return when the server says that so many requests run and wait."""
    async with asyncio.timeout(60):
        while True:
            seen = await rank(session, url)
            if (seen["num_running_reqs"], seen["num_waiting_reqs"]) == (running, waiting):
                return
            await asyncio.sleep(0.05)  # polling another process


async def abort(session: aiohttp.ClientSession, url: str, rid: str) -> None:
    """Ask for an abort; the answer is always 200 and empty."""
    async with session.post(f"{url}/abort_request", json={"rid": rid}) as answer:
        assert (answer.status, await answer.text()) == (200, "")


async def test_aborts_come_back_as_200_and_by_prefix(session: aiohttp.ClientSession, url: str) -> None:
    """A running request gives partial ids with finish abort, a waiting one none.

    A known rid takes with it every rid that begins with it; an unknown prefix takes nothing.
    """
    rids = ("job-1", "job-10", "job-11", "other")
    running = {rid: asyncio.ensure_future(generate(session, url, rid, LONG)) for rid in rids}
    await until(session, url, SLOTS, 0)
    waiting = asyncio.ensure_future(generate(session, url, "wait-1", LONG))
    await asyncio.wait([waiting], timeout=1.0)  # long enough to be queued: the snapshot may be older
    await abort(session, url, "wait-1")
    status, body = await waiting
    assert (status, body["output_ids"]) == (200, [])
    assert body["meta_info"]["finish_reason"]["type"] == "abort"
    assert body["meta_info"]["finish_reason"]["message"] == "Abort in waiting queue"
    await abort(session, url, "oth")
    await abort(session, url, "job-1")
    for rid in rids[:3]:
        status, body = await running[rid]
        finish = body["meta_info"]["finish_reason"]
        assert (status, finish["type"], finish["message"]) == (200, "abort", "Aborted")
        assert 0 < len(body["output_ids"]) < LONG["max_new_tokens"]
        assert body["meta_info"]["completion_tokens"] == len(body["output_ids"])
    assert not running["other"].done()
    await abort(session, url, "other")
    await running["other"]


async def test_a_rid_in_flight_is_refused_twice_and_free_after(
    session: aiohttp.ClientSession, url: str
) -> None:
    """A rid in flight is refused; the first request is unharmed, and the rid can be used again."""
    first = asyncio.ensure_future(generate(session, url, "twice", LONG))
    await until(session, url, 1, 0)
    status, body = await generate(session, url, "twice", GREEDY)
    assert (status, body) == (400, {"error": {"message": "Duplicate request ID detected: twice"}})
    await abort(session, url, "twice")
    await first
    status, body = await generate(session, url, "twice", GREEDY)
    assert (status, body["meta_info"]["finish_reason"]["type"]) == (200, "stop")


async def test_a_client_that_leaves_frees_its_slot(session: aiohttp.ClientSession, url: str) -> None:
    """A broken connection aborts the request within seconds."""
    leaving = asyncio.ensure_future(generate(session, url, "leaver", LONG))
    await until(session, url, 1, 0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    await until(session, url, 0, 0)


async def test_loads_stamps_move(session: aiohttp.ClientSession, url: str) -> None:
    """The scheduler's snapshot is renewed while it decodes (every few dozen steps) and while it is idle."""
    running = asyncio.ensure_future(generate(session, url, "stamps", LONG))
    await until(session, url, 1, 0)
    await moved(session, url)
    await abort(session, url, "stamps")
    await running
    await until(session, url, 0, 0)
    await moved(session, url)


async def moved(session: aiohttp.ClientSession, url: str) -> None:
    """Return when the snapshot's stamp has changed twice."""
    stamps: set[float] = set()
    async with asyncio.timeout(60):
        while len(stamps) < 3:
            stamps.add((await rank(session, url))["timestamp"])
            await asyncio.sleep(0.05)  # polling another process


@pytest.mark.sglang
@pytest.mark.parametrize("question", QUESTIONS)
async def test_greedy_ids_agree(
    session: aiohttp.ClientSession, standin_url: str, genuine_url: str, question: str
) -> None:
    """Greedy ids are equal, but where the two best logits are within 1e-4 of each other."""
    ids = prompt(question).tolist()
    answers = [await generate(session, at, "parity", GREEDY, ids) for at in (standin_url, genuine_url)]
    ours, theirs = (body["output_ids"] for _, body in answers)
    if ours == theirs:
        return
    same = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
    body = {
        "input_ids": ids + theirs[:same],
        "sampling_params": {"temperature": 0.0, "max_new_tokens": 1},
        "return_logprob": True,
        "top_logprobs_num": 2,
    }
    async with session.post(f"{genuine_url}/generate", json=body) as answer:
        best, second = (await answer.json())["meta_info"]["output_top_logprobs"][0]
    assert abs(best[0] - second[0]) < 1e-4, (
        f"{question}: ids differ at {same}: {ours[same]} and {theirs[same]}"
    )
