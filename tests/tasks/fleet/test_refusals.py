"""A refusal is the row's only if a control prompt is taken; a time limit of the way is never the row's."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import attrs
import numpy as np
import pytest
from aiohttp import web

from tasks.errors import SurroundingsError
from tasks.fleet.dispatch import Dispatch
from tasks.fleet.fleet import Fleet
from tasks.rows.records import Request
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

BRISK = attrs.evolve(QUICK, backoff_seconds=0.01, backoff_most_seconds=0.05, lost_seconds=0.3)


async def _send(lane: ListLane, *urls: str, patience: Any = BRISK) -> Counter[str]:
    async with Fleet(settings(*urls, patience=patience)) as fleet:
        await fleet.ensure()
        async with Dispatch(fleet, PLAN.sampling, VOCAB, 5) as dispatch, asyncio.timeout(60):
            await dispatch.run(lane)
            return Counter(dispatch.stats().outcomes)


def _long(count: int, ids: int = 60) -> list[Request]:
    return [Request(f"l:{i}#t0~s0", np.full(ids, 2 + i % 50, np.int32), 16, seed=i) for i in range(count)]


def _refuse(server: Scripted, least: int, status: int) -> None:
    async def refuse(body: dict[str, Any], before: int) -> web.Response | None:
        if len(body["input_ids"]) < least:
            return None
        return web.Response(status=status, text="too large")

    server.hook = refuse


@pytest.mark.parametrize("status", [400, 413, 422])
@pytest.mark.parametrize("least", [0, 50], ids=["everything", "long prompts"])
async def test_what_one_server_refuses_another_makes(status: int, least: int) -> None:
    """A server, or a proxy with a body limit, refuses much and at once: no row is lost to it."""
    async with scripted_server() as sound, scripted_server() as sick:
        _refuse(sick, least, status)
        lane = ListLane([*requests(40), *_long(40)])
        await _send(lane, sound.url, sick.url)
        assert_right(lane)
        assert not lane.failures


async def test_a_server_that_refuses_everything_ends_the_run_and_parks_nothing() -> None:
    """There is no other one: the run ends with what to look at; no row is called poison."""
    async with scripted_server() as server:
        _refuse(server, 50, 413)
        lane = ListLane([*requests(4), *_long(20)])
        with pytest.raises(SurroundingsError, match=r"every prompt of 60 ids, a control prompt too.*413"):
            await _send(lane, server.url)
        assert all(completion.sent for completion in lane.completions)


@pytest.mark.parametrize("servers", [1, 2])
async def test_a_row_that_is_refused_where_others_are_taken_is_parked_with_both_answers(servers: int) -> None:
    """Twice refused, a control prompt taken each time: the row's own; it is sent no third time."""
    async with scripted_server() as one, scripted_server() as two:

        async def refuse(body: dict[str, Any], before: int) -> web.Response | None:
            return web.Response(status=400, text="no such row") if body["input_ids"][-1] == 7 else None

        one.hook = two.hook = refuse
        lane = ListLane(requests(30))
        await _send(lane, *[one.url, two.url][:servers])
        ended = lane.by_row()
        assert [row for row, c in ended.items() if not c.sent] == ["s:7#t0~s0"]
        parked = ended["s:7#t0~s0"]
        assert (parked.code, parked.detail.count("no such row")) == ("poison", 2)
        assert sum(body["input_ids"][-1] == 7 for body in (*one.rows, *two.rows)) == 2


@asynccontextmanager
async def _proxy(server: Scripted, limit: float) -> AsyncIterator[str]:
    """A reverse proxy with a read timeout, as nginx has one: 504 and a page when an answer takes longer."""
    async with aiohttp.ClientSession(auto_decompress=False) as session:

        async def forward(request: web.Request) -> web.Response:
            body = await request.read()
            try:
                async with asyncio.timeout(limit):
                    async with session.request(
                        request.method, server.url + request.path_qs, data=body or None,
                        headers={"Content-Type": "application/json"},
                    ) as reply:  # fmt: skip
                        return web.Response(body=await reply.read(), status=reply.status)
            except TimeoutError:
                page = "<html><h1>504 Gateway Time-out</h1><hr>nginx</html>"
                return web.Response(status=504, text=page, content_type="text/html")

        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{tail:.*}", forward)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]
        finally:
            await runner.cleanup()


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_a_time_limit_in_front_of_a_server_ends_the_run_and_redraws_no_row() -> None:
    """Answers that take longer than a proxy waits: named as its time limit, not drawn until short."""
    async with scripted_server() as server, _proxy(server, 1.2) as url:

        async def take_long(body: dict[str, Any], before: int) -> None:
            if len(body["input_ids"]) > 50:
                await asyncio.sleep(30)

        server.hook = take_long
        lane = ListLane([*requests(8), *_long(4)])
        with pytest.raises(SurroundingsError, match="a time limit in front of it cuts long answers"):
            await _send(lane, url)
        sends = Counter(body["input_ids"][0] for body in server.rows if len(body["input_ids"]) > 50)
        assert max(sends.values()) <= 2
        assert {c.row_id[0] for c in lane.completions} == {"s"}
        assert not lane.failures


@pytest.mark.asyncio(loop_factories=["uvloop"])
@pytest.mark.parametrize(
    ("status", "text"),
    [(502, "Bad Gateway"), (500, "<html>oops</html>"), (200, "<html>log in</html>")],
    ids=["502", "500 page", "200 page"],
)
async def test_a_proxys_own_answer_counts_against_no_row(status: int, text: str) -> None:
    """It answers at once instead of the server, twelve times: all rows are made, and no attempt is spent."""
    async with scripted_server() as server:
        wrong = iter(range(12))

        async def answer(body: dict[str, Any], before: int) -> web.Response | None:
            return None if next(wrong, None) is None else web.Response(status=status, text=text)

        server.hook = answer
        lane = ListLane(requests(30))
        await _send(lane, server.url)
        assert next(wrong, None) is None
        assert_right(lane)
        assert not lane.failures


async def test_rows_that_the_server_says_it_makes_are_not_given_up() -> None:
    """The pace drops to a fiftieth: the rows take longer than it explained, and are waited for."""
    patience = attrs.evolve(BRISK, deadline_floor_seconds=0.2)
    async with scripted_server() as server:

        async def slow_down(body: dict[str, Any], before: int) -> None:
            await asyncio.sleep(0.02 if before < 8 else 1.0)

        server.hook = slow_down
        lane = ListLane(requests(16))
        await _send(lane, server.url, patience=patience)
        assert_right(lane)
        assert not lane.failures


async def test_a_first_row_that_is_lost_is_sent_again_where_no_loads_are_told() -> None:
    """No pace is known and the server tells no loads: it is sent again all the same."""
    patience = attrs.evolve(BRISK, deadline_floor_seconds=0.2)
    async with scripted_server() as server:
        server.tells_loads = False

        async def lose_first(body: dict[str, Any], before: int) -> None:
            if before == 0:
                await asyncio.Event().wait()

        server.hook = lose_first
        lane = ListLane([attrs.evolve(request, max_new_tokens=4) for request in requests(1)])
        await _send(lane, server.url, patience=patience)
        assert_right(lane)
        assert [outcome for _, outcome, _ in lane.failures] == ["lost"]
