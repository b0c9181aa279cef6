"""With rows left and a server open, something is in flight or a wake-up is armed: no run waits for ever."""

import asyncio
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from aiohttp import web

from tasks.fleet.dispatch import Dispatch
from tasks.fleet.fleet import Fleet
from tasks.fleet.server import CHECKING
from tests.support.scripted import (
    PLAN,
    QUICK,
    VOCAB,
    Hook,
    ListLane,
    Scripted,
    assert_right,
    requests,
    scripted_server,
    settings,
)

NO_LOOKS = attrs.evolve(QUICK, poll_seconds=120.0)
"""A look at a server may wake the dispatch by chance: there is none."""

LIMIT_SECONDS = 60.0


@pytest.fixture
async def early_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every timer fires 2 ms before its time, as those of uvloop do by up to 1 ms."""
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def early(delay: float, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        return call_later(max(0.0, delay - 0.002), callback, *args, **kwargs)

    monkeypatch.setattr(loop, "call_later", early)


@pytest.mark.parametrize("refusals", [1, 2, 5])
async def test_a_busy_server_is_asked_again(early_timers: None, refusals: int) -> None:
    """One row, refused as busy a few times, is sent again although the timer comes too early."""
    async with scripted_server() as server:

        async def busy(body: dict[str, Any], before: int) -> web.Response | None:
            return web.Response(status=503) if before < refusals else None

        server.hook = busy
        lane = ListLane(requests(1))
        async with Fleet(settings(server.url, patience=NO_LOOKS)) as fleet:
            await fleet.ensure()
            async with Dispatch(fleet, PLAN.sampling, VOCAB, 5) as dispatch, asyncio.timeout(LIMIT_SECONDS):
                await dispatch.run(lane)
        assert_right(lane)
        assert len(server.rows) == refusals + 1


async def until(happened: Callable[[], bool]) -> None:
    """Return when something that nobody tells has happened."""
    while not happened():  # noqa: ASYNC110  the product has no event for it
        await asyncio.sleep(0.005)


def alarm(server: Scripted, body: dict[str, Any]) -> web.Response:
    """Answer with a wrong count."""
    return web.json_response(server.reply(body, completion_tokens=99))


def new_weights(server: Scripted, body: dict[str, Any]) -> web.Response:
    """Answer as other weights would, which are gone again when it is probed."""
    return web.json_response(server.reply(body, weight_version="other"))


def failure(server: Scripted, body: dict[str, Any]) -> web.Response:
    """Fail, as seven others do."""
    return web.Response(status=500)


def refused_key(server: Scripted, body: dict[str, Any]) -> web.Response:
    """Say that the key is wrong: the server is closed for good."""
    return web.Response(status=401)


Answer = Callable[[Scripted, dict[str, Any]], web.Response]


def breaks_one(server: Scripted, fleet: Fleet, answer: Answer) -> Hook:
    """The first row's connection breaks; while it is open whether the server lives, all others are answered.

    Its `/health` answers after that.
    """
    seen: set[int] = set()
    gate = server.health_gate = asyncio.Event()
    gate.set()

    async def hook(body: dict[str, Any], before: int) -> web.Response | None:
        number = body["input_ids"][2]
        if number in seen:
            return None
        seen.add(number)
        request = server.requests[-1]
        if number == 0:
            gate.clear()
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        await until(lambda: fleet.servers[0].state == CHECKING or gate.is_set())
        asyncio.get_running_loop().call_later(0.1, gate.set)
        return answer(server, body)

    return hook


@pytest.mark.parametrize("answer", [alarm, new_weights, failure, refused_key])
async def test_a_row_whose_outcome_is_open_comes_back_from_a_server_that_is_taken_out(answer: Answer) -> None:
    """Its connection broke, and before anybody knew why, another row's reply took the server out."""
    async with scripted_server() as server, scripted_server() as other:
        lane = ListLane(requests(9))
        other.health = 503  # joins only when the first is closed for good
        async with Fleet(settings(server.url, other.url, patience=NO_LOOKS, in_flight=9)) as fleet:
            ensuring = asyncio.ensure_future(fleet.ensure())
            await until(lambda: bool(fleet.open()))
            server.hook = breaks_one(server, fleet, answer)
            async with Dispatch(fleet, PLAN.sampling, VOCAB, 20) as dispatch, asyncio.timeout(LIMIT_SECONDS):
                running = asyncio.ensure_future(dispatch.run(lane))
                await until(lambda: bool(server.rows))
                other.health = 200
                await running
            ensuring.cancel()
        assert sorted(lane.by_row()) == sorted(lane.planned)
        assert all(completion.sent for completion in lane.completions)
