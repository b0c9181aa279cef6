"""The window on a server whose limit is its KV pool: few rows wait there, and it runs what it can."""

import asyncio
from typing import Any

import attrs
import numpy as np
import pytest

from tasks.fleet.dispatch import Dispatch
from tasks.fleet.fleet import Fleet
from tasks.fleet.window import FIRST_LIMIT, Window, on_loads, open_window, queue_target
from tasks.sglang.info import Loads
from tests.support.kv_server import KvServer
from tests.support.scripted import PLAN, VOCAB, ListLane, requests, scripted_server, settings

STEPS = 10_000
LOOK_STEPS = 50
"""Decode steps of 20 ms between two looks: two hundred seconds in all."""


@attrs.define
class Ran:
    """What a server ran, step by step."""

    waiting: list[int]
    running: list[int]
    generated: list[int]

    def after(self, share: float) -> tuple[float, float, int]:
        """Return median waiting, mean running and ids generated, the first `share` of the run left out."""
        first = int(len(self.waiting) * share)
        median, mean = np.median(self.waiting[first:]), np.mean(self.running[first:])
        return float(median), float(mean), self.generated[-1] - self.generated[first]


def _ran(server: KvServer, window: Window | None) -> Ran:
    """Fill the window in every step (None: there is always a queue), look at the server once a second."""
    ran, adapted = Ran([], [], []), server.snapshot
    for number in range(STEPS):
        server.send(max(0, (6000 if window is None else window.limit) - server.in_flight))
        if window is not None and number % LOOK_STEPS == 0 and server.snapshot is not adapted:
            adapted = server.snapshot
            window = on_loads(window, adapted, server.in_flight)
        server.step()
        ran.waiting.append(len(server.waiting))
        ran.running.append(server.length.size)
        ran.generated.append(server.generated)
    return ran


@pytest.mark.parametrize(
    ("pool", "told"),
    [
        pytest.param(100_000, 4096, id="a hundred of 4096"),
        pytest.param(1_200_000, 4096, id="1,250 of 4096"),
        pytest.param(4_000_000, 4096, id="all of 4096"),
        pytest.param(700_000, 512, id="all of 512"),
    ],
)
def test_few_rows_wait_where_the_kv_pool_is_the_limit_and_it_runs_what_it_can(pool: int, told: int) -> None:
    """Against the same server with rows enough at any time: as many ids a second, and a short queue."""
    ideal = _ran(KvServer(pool, told=told), None).after(0.25)
    ran = _ran(KvServer(pool, told=told), open_window(None, told))
    waiting, running, generated = ran.after(0.25)
    assert waiting <= 1.5 * queue_target(int(running))
    assert max(ran.waiting) <= max(FIRST_LIMIT, running / 4)
    assert generated >= 0.99 * ideal[2]


def test_what_was_pushed_back_is_a_value_and_no_counter() -> None:
    """Told per log line: it rises and falls, each time rows were pushed back; a standing one is no news."""
    told = [0, 3, 3, 2, 0, 3]
    window, limits = Window(100), []
    for retracted in told:
        window = on_loads(window, Loads(running=50, waiting=2, retracted=retracted), 100)
        limits.append(window.limit)
    assert limits == [100, 90, 90, 81, 81, 72]


def test_rows_that_were_pushed_back_take_no_slot_of_those_that_run() -> None:
    """A server that runs what the window allows and pushes back in between is not starved."""
    window = Window(100)
    for retracted in (1, 2, 3):
        window = on_loads(window, Loads(running=98, waiting=2, retracted=retracted), 100)
    assert window.limit == 98


async def test_a_server_that_tells_thousands_of_slots_gets_what_it_runs() -> None:
    """Over a socket: it runs forty and tells 4,096; the window comes down to what it runs."""
    async with scripted_server() as server:
        server.told, server.slots = 4096, 40
        slots = asyncio.Semaphore(40)

        async def serve(body: dict[str, Any], before: int) -> None:
            async with slots:
                await asyncio.sleep(0.1)  # the service itself

        server.hook = serve
        lane = ListLane(requests(20_000))
        async with Fleet(settings(server.url, in_flight=None)) as fleet:
            await fleet.ensure()
            async with Dispatch(fleet, PLAN.sampling, VOCAB, 5) as dispatch, asyncio.timeout(120):
                running = asyncio.ensure_future(dispatch.run(lane))
                while len(server.waiting_seen) < 40 or max(server.waiting_seen[-20:]) > 20:
                    await asyncio.wait([running], timeout=0.02)
                    assert not running.done()
                limit = fleet.servers[0].window.limit
                running.cancel()
    assert 30 <= limit <= 64  # those that it runs, those that were seen to wait, one look
    assert lane.failures == []
