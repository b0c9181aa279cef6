"""A window on a server that does not tell its loads: by tables, and over a scripted server."""

import asyncio

import numpy as np
import pytest
from aiohttp import web

from tasks.fleet.climb import HOLD, OPENED, REFUSED, Climb, Replies, on_pace
from tasks.fleet.dispatch import Dispatch
from tasks.fleet.fleet import Fleet
from tests.support.scripted import PLAN, VOCAB, ListLane, requests, scripted_server, settings


@pytest.mark.parametrize(
    ("climb", "limit", "speed", "noise", "then", "left"),
    [
        pytest.param(OPENED, 64, 10.0, 0.0, 64, Climb(), id="the first measure is dropped"),
        pytest.param(REFUSED, 57, 10.0, 0.0, 57, Climb(1, 0.0, HOLD - 1), id="a refusal stays"),
        pytest.param(Climb(), 64, 10.0, 0.0, 96, Climb(64, 640.0), id="measured: more are tried"),
        pytest.param(Climb(64, 640.0), 96, 10.0, 0.0, 144, Climb(96, 960.0), id="more make more"),
        pytest.param(Climb(64, 640.0), 96, 7.5, 0.0, 144, Climb(96, 720.0), id="a little slower each"),
        pytest.param(Climb(64, 640.0), 96, 6.7, 0.0, 51, Climb(64, 640.0), id="more wait: fewer"),
        pytest.param(Climb(64, 640.0), 96, 7.5, 0.1, 51, Climb(64, 640.0), id="a gain within noise"),
        pytest.param(Climb(64, 640.0), 51, 12.5, 0.0, 40, Climb(51, 637.5), id="fewer do"),
        pytest.param(Climb(64, 640.0), 51, 10.0, 0.0, 64, Climb(64, 640.0, HOLD), id="fewer make less: back"),
        pytest.param(Climb(64, 640.0), 51, 11.0, 0.08, 40, Climb(51, 561.0), id="a loss within noise"),
        pytest.param(Climb(64, 640.0, 5), 64, 9.5, 0.0, 64, Climb(64, 640.0, 4), id="settled"),
        pytest.param(Climb(64, 640.0, 5), 64, 8.0, 0.0, 64, OPENED, id="slower: anew"),
        pytest.param(Climb(64, 640.0, 5), 64, 8.0, 0.1, 64, Climb(64, 640.0, 4), id="slower within noise"),
        pytest.param(Climb(64, 640.0), 64, 9.5, 0.0, 96, Climb(64, 608.0), id="after a while more are tried"),
        pytest.param(Climb(40000, 4e5), 60000, 10.0, 0.0, 65536, Climb(60000, 6e5), id="never above 65,536"),
        pytest.param(Climb(1, 10.0), 2, 5.0, 0.0, 1, Climb(1, 10.0, HOLD), id="never below one"),
    ],
)  # fmt: skip
def test_a_window_grows_while_more_rows_make_more_ids(
    climb: Climb, limit: int, speed: float, noise: float, then: int, left: Climb
) -> None:
    """What counts is the rate of the whole window, `limit` x ids per second of a row."""
    assert on_pace(climb, limit, speed, noise) == (then, left)


def _served(slots: int, limit: int, lengths: np.ndarray) -> Replies:
    """Return the replies of a server with `slots` slots of 10 ids a second, which a window keeps filled."""
    replies, wait = Replies(), max(0, limit - slots) / slots * float(lengths.mean()) / 10.0
    for ids in lengths.tolist():
        replies.add(ids, wait + ids / 10.0)
    return replies


@pytest.mark.parametrize("sigma", [0.0, 0.8], ids=["equal lengths", "long tail"])
@pytest.mark.parametrize("slots", [1, 8, 60, 100, 1000, 5000])
def test_it_ends_near_the_slots_that_nobody_told(slots: int, sigma: float) -> None:
    """From 64 up or down, within a quarter; answers that become eight times as long change nothing."""
    dice, limit, climb, settled = np.random.default_rng(slots), 64, OPENED, []
    for number in range(80):
        median = 800 if number >= 40 else 100
        lengths = np.maximum(1, median * dice.lognormal(0.0, sigma, max(32, 2 * limit))).astype(int)
        served = _served(slots, limit, lengths)
        assert served.is_measure(limit)
        limit, climb = on_pace(climb, limit, served.speed, served.noise)
        settled += [climb.limit] if climb.holds else []
    assert len(settled) > 20
    assert all(0.75 * slots <= found <= max(2, 1.25 * slots) for found in settled[1:]), settled


@pytest.mark.slow
@pytest.mark.asyncio(loop_factories=["uvloop"])
@pytest.mark.parametrize("first", [4, 40], ids=["from below", "from above"])
async def test_a_server_that_tells_nothing_is_filled_and_not_overrun(first: int) -> None:
    """Sixteen slots, no loads: the window settles within a factor of two; with six left at twelve or fewer.

    Where this machine is slower than the service, noise may settle it elsewhere for a while: it tries again.
    """
    async with scripted_server() as server:
        server.tells_loads = False
        slots = asyncio.Semaphore(16)

        async def serve(body: dict, before: int) -> web.StreamResponse | None:
            async with slots:
                await asyncio.sleep(0.2)  # the service itself
            return None

        server.hook = serve
        lane = ListLane(requests(20_000))
        async with Fleet(settings(server.url, in_flight=first)) as fleet:
            await fleet.ensure()
            async with Dispatch(fleet, PLAN.sampling, VOCAB, 5) as dispatch, asyncio.timeout(300):
                running, (only,) = asyncio.ensure_future(dispatch.run(lane)), fleet.servers
                while not (only.climb.holds > 1 and 8 <= only.window.limit <= 32):  # settled
                    await asyncio.wait([running], timeout=0.02)
                for _ in range(10 if first > 16 else 0):
                    await slots.acquire()
                while not (only.climb.holds > 1 and only.window.limit <= (12 if first > 16 else 32)):
                    await asyncio.wait([running], timeout=0.02)
                running.cancel()
    assert lane.failures == []
