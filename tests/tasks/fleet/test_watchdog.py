"""The liveness invariant, broken on purpose: the watchdog mends it, says so in one line, and the run ends."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import pytest
from aiohttp import web

from tasks.errors import SurroundingsError
from tasks.fleet.dispatch import Dispatch
from tasks.fleet.fleet import Fleet
from tasks.fleet.server import AWAY, CHECKING, CLOSED, OPEN, OPENING, Server
from tasks.sglang.settings import Patience
from tests.support.held_clock import HeldLoop
from tests.support.scripted import (
    PLAN,
    QUICK,
    VOCAB,
    ListLane,
    Scripted,
    assert_right,
    requests,
    scripted_server,
    settings,
)

ALONE = attrs.evolve(QUICK, poll_seconds=120.0, watchdog_seconds=0.1)
"""No look at a server wakes the dispatch by chance: only the watchdog does."""

LIMIT_SECONDS = 60.0


async def until(happened: Callable[[], bool]) -> None:
    """Return when something that nobody tells has happened."""
    while not happened():  # noqa: ASYNC110  the product has no event for it
        await asyncio.sleep(0.005)


def drop_timers(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Lose every timer of one callback."""
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def lose(delay: float, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        lost = getattr(callback, "__name__", "") == name
        return call_later(delay, (lambda *_: None) if lost else callback, *args, **kwargs)

    monkeypatch.setattr(loop, "call_later", lose)


Break = Callable[[Scripted, Dispatch, pytest.MonkeyPatch], Awaitable[None]]


async def lost_pause(server: Scripted, dispatch: Dispatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause after a failed attempt never ends."""
    drop_timers(monkeypatch, "_resume")

    async def fail_once(body: dict[str, Any], before: int) -> web.Response | None:
        return web.Response(status=500) if before == 3 else None

    server.hook = fail_once


async def lost_busy_timer(server: Scripted, dispatch: Dispatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that was full is never asked again."""
    drop_timers(monkeypatch, "_wake_when_free")

    async def full_once(body: dict[str, Any], before: int) -> web.Response | None:
        return web.Response(status=503) if before < 4 else None

    server.hook = full_once


async def lost_fill(server: Scripted, dispatch: Dispatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replies of one window free their slots and fill none."""
    fill, times = dispatch._attempts._fill, 0

    def forget() -> None:
        nonlocal times
        times += 1
        if not 5 <= times < 9:
            fill()

    monkeypatch.setattr(dispatch._attempts, "_fill", forget)


async def lost_row(server: Scripted, dispatch: Dispatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row falls out of the queue."""

    async def drop(body: dict[str, Any], before: int) -> None:
        if before == 3:
            dispatch._backlog.ready.popleft()

    server.hook = drop


async def dead_attempt(server: Scripted, dispatch: Dispatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for a reply is cancelled by nobody who owns the row."""

    async def cancel(body: dict[str, Any], before: int) -> None:
        if before == 3:
            flight = dispatch.fleet.servers[0].flights[body["rid"]]
            assert flight.task is not None
            flight.task.cancel()
            await asyncio.sleep(0)

    server.hook = cancel


async def forgotten_outcome(server: Scripted, dispatch: Dispatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection breaks, the server lives, and nobody hands the row back."""
    monkeypatch.setattr(dispatch, "on_alive", lambda server: None)

    async def break_off(body: dict[str, Any], before: int) -> web.Response | None:
        if before == 3:
            transport = server.requests[-1].transport
            assert transport is not None
            transport.abort()
        return None

    server.hook = break_off


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (lost_pause, "after a pause: 1"),
        (lost_busy_timer, "had room, 8 rows or more waited"),
        (lost_fill, "had room, 4 rows or more waited"),
        (lost_row, "nowhere: 1"),
        (dead_attempt, "nowhere: 1"),
        (forgotten_outcome, "without an answer: 1"),
    ],
)
async def test_a_lost_wake_up_is_mended_and_told_once(
    broken: Break, words: str, monkeypatch: pytest.MonkeyPatch, watchdog_lines: list[str]
) -> None:
    """Every row ends once and right; one line says what stood still, how many rows, which server."""
    told: list[str] = []
    async with scripted_server() as server:
        lane = ListLane(requests(20))
        async with Fleet(settings(server.url, patience=ALONE), told.append) as fleet:
            await fleet.ensure()
            async with Dispatch(fleet, PLAN.sampling, VOCAB, 20) as dispatch, asyncio.timeout(LIMIT_SECONDS):
                await broken(server, dispatch, monkeypatch)
                await dispatch.run(lane)
        assert_right(lane)
    lines = [line for line in told if line.startswith("watchdog: ")]
    assert len(lines) == len(watchdog_lines) == 1, lines
    assert words in lines[0]
    assert server.url in lines[0] or "nowhere" in words or "pause" in words
    watchdog_lines.clear()


async def test_a_run_that_waits_for_a_slow_server_is_no_stall() -> None:
    """Looks by the dozen while four rows take their time and sixteen wait: nothing is told, nothing sent."""
    async with scripted_server() as server:
        gate = asyncio.Event()

        async def hold(body: dict[str, Any], before: int) -> None:
            await gate.wait()

        server.hook = hold
        lane = ListLane(requests(20))
        patience = attrs.evolve(ALONE, watchdog_seconds=0.01)
        async with Fleet(settings(server.url, patience=patience)) as fleet:
            await fleet.ensure()
            async with Dispatch(fleet, PLAN.sampling, VOCAB, 5) as dispatch, asyncio.timeout(LIMIT_SECONDS):
                running = asyncio.ensure_future(dispatch.run(lane))
                await asyncio.wait([running], timeout=0.5)
                assert len(server.rows) == 4
                gate.set()
                await running
        assert_right(lane)


async def test_a_dead_fleet_ends_the_run_after_its_half_hour(held_clock: HeldLoop) -> None:
    """Nobody answers: with the limits of a real run, on a moved clock, it ends and says for how long."""
    async with scripted_server() as server:

        async def hold(body: dict[str, Any], before: int) -> None:
            await asyncio.Event().wait()

        server.hook = hold
        fleet_settings = settings(server.url, patience=Patience(), ready_timeout_seconds=1800.0)
        async with Fleet(fleet_settings) as fleet:
            await fleet.ensure()
            async with Dispatch(fleet, PLAN.sampling, VOCAB, 5) as dispatch:
                running = asyncio.ensure_future(dispatch.run(ListLane(requests(4))))
                await until(lambda: server.running == 4)
                await server.stop()
                begun = held_clock.time()
                async with asyncio.timeout(7200.0):
                    while not running.done():
                        held_clock.advance(1.0)
                        await asyncio.sleep(0.001)
                with pytest.raises(SurroundingsError, match=rf"{server.url} for \d+ s"):
                    await running
                assert 1800.0 <= held_clock.time() - begun < 4000.0


@pytest.mark.parametrize("deed", ["evict", "evict, rows may end", "close"])
@pytest.mark.parametrize("state", [OPENING, OPEN, CHECKING, AWAY, CLOSED])
async def test_a_server_that_is_taken_out_keeps_no_row(state: str, deed: str) -> None:
    """Its rows in flight, which never end, and one of unknown outcome: all are made, in any state."""
    async with scripted_server() as sick, scripted_server() as sound:

        async def hold(body: dict[str, Any], before: int) -> None:
            await asyncio.Event().wait()

        sick.hook = hold
        lane = ListLane(requests(12))
        patience = attrs.evolve(ALONE, deadline_floor_seconds=0.3, watchdog_seconds=0.05)
        async with Fleet(settings(sick.url, sound.url, patience=patience)) as fleet:
            await fleet.ensure()
            server = fleet.servers[0]
            async with Dispatch(fleet, PLAN.sampling, VOCAB, 20) as dispatch, asyncio.timeout(LIMIT_SECONDS):
                running = asyncio.ensure_future(dispatch.run(lane))
                await until(lambda: sick.running == 4)
                sick.health_gate = asyncio.Event()
                flight = next(iter(server.flights.values()))
                server.state = CHECKING  # so that its broken connection waits for a check
                sent = zip(sick.seen, sick.requests, strict=True)
                transport = next(r.transport for body, r in sent if body.get("rid") == flight.rid)
                assert transport is not None
                transport.abort()
                await until(lambda: len(server.flights) == 3)
                server.state = state
                if deed == "close":
                    fleet.close(server, SurroundingsError("closed by hand"))
                else:
                    fleet.evict(server, "evicted by hand", drop=deed == "evict")
                await running
        assert sorted(lane.by_row()) == sorted(lane.planned)
        assert all(completion.sent for completion in lane.completions)


async def test_a_check_that_breaks_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of our own while a server is in doubt: the run ends with it, not never."""
    async with scripted_server() as server:

        async def break_off(body: dict[str, Any], before: int) -> web.Response:
            transport = server.requests[-1].transport
            assert transport is not None
            transport.abort()
            return web.Response()

        async def broken(server: Server, *, ask: bool) -> str:
            raise ZeroDivisionError("a fault of our own")

        server.hook = break_off
        async with Fleet(settings(server.url, patience=ALONE)) as fleet:
            await fleet.ensure()
            monkeypatch.setattr(fleet, "_fault", broken)
            async with Dispatch(fleet, PLAN.sampling, VOCAB, 5) as dispatch, asyncio.timeout(LIMIT_SECONDS):
                with pytest.raises(ZeroDivisionError):
                    await dispatch.run(ListLane(requests(1)))


async def test_a_server_that_was_closed_is_not_taken_back() -> None:
    """A late 401 shuts it out for good while it is being probed: the probe that it passes changes nothing."""
    async with scripted_server() as server, Fleet(settings(server.url, patience=ALONE)) as fleet:
        await fleet.ensure()
        server.health_gate = asyncio.Event()
        before = set(fleet._tasks)
        fleet.evict(fleet.servers[0], "evicted by hand")
        (recovering,) = fleet._tasks - before
        await asyncio.sleep(0)  # it has begun
        fleet.close(fleet.servers[0], SurroundingsError("HTTP 401"))
        server.health_gate.set()
        async with asyncio.timeout(LIMIT_SECONDS):
            await recovering
        assert fleet.servers[0].state == CLOSED
