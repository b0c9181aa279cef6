"""The fault matrix: two servers, one of which is wrong but answers; which rows are kept, which are parked.

Each case draws when the server goes wrong, how many of its answers are wrong, and which rows no server takes.
`RAWSEQ_MATRIX_CASES` sets how many (default 20), `RAWSEQ_SOAK_SEED` repeats a run; `make soak` takes 200.
"""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import pytest
from aiohttp import web

from tasks.fleet.dispatch import Dispatch
from tasks.fleet.fleet import Fleet
from tasks.rows.records import Completion
from tasks.sglang.protocol import integrity_alarm
from tests.support.scripted import (
    PLAN,
    PROMPT,
    QUICK,
    VOCAB,
    ListLane,
    Scripted,
    requests,
    right_ids,
    scripted_server,
    settings,
)

CASES = int(os.environ.get("RAWSEQ_MATRIX_CASES", "20"))
SEED = int(os.environ.get("RAWSEQ_SOAK_SEED", "0")) or 1
ROWS = 32
LIMIT_SECONDS = 60.0
"""No case takes more than a few seconds: one that does waits for ever."""

LIVELY = attrs.evolve(
    QUICK,
    lost_seconds=0.3,
    backoff_seconds=0.01,
    backoff_most_seconds=0.05,
    alarm_seconds=0.1,
    watchdog_seconds=0.1,
)

MAX_ATTEMPTS = 5
"""The product's default."""

Wrong = Callable[[Scripted, dict[str, Any]], Awaitable[web.StreamResponse | None]]


async def refuses(server: Scripted, body: dict[str, Any]) -> web.StreamResponse | None:
    """Refuse, as a proxy that lets no large body through."""
    return web.json_response({"error": {"message": "no"}}, status=400)


async def short_context(server: Scripted, body: dict[str, Any]) -> web.StreamResponse | None:
    """Refuse what a server of a longer context takes."""
    message = "The input (3 tokens) is longer than the model's context length (2 tokens)."
    return web.json_response({"error": {"message": message}}, status=400)


async def other_weights(server: Scripted, body: dict[str, Any]) -> web.StreamResponse | None:
    """Come back as another model of the same tokenizer, which says nothing of it."""
    if server.model == 0:
        server.bounce(model=1)
        return await breaks_off(server, body)
    return await other_ids(server, body)


async def other_ids(server: Scripted, body: dict[str, Any]) -> web.StreamResponse | None:
    """Answer as another model would."""
    ids = right_ids([*body["input_ids"], 1])
    return web.json_response(server.reply(body, completion_tokens=len(ids)) | {"output_ids": ids})


async def told_weights(server: Scripted, body: dict[str, Any]) -> web.StreamResponse | None:
    """Answer with other weights and say so."""
    server.weights = "step-2"
    return await other_ids(server, body)


async def loops(server: Scripted, body: dict[str, Any]) -> web.StreamResponse | None:
    """Say one id until the cap."""
    cap = body["sampling_params"]["max_new_tokens"]
    meta = {"completion_tokens": cap, "finish_reason": {"type": "length", "length": cap}}
    return web.json_response(server.reply(body, **meta) | {"output_ids": [10] * cap})


async def miscounts(server: Scripted, body: dict[str, Any]) -> web.StreamResponse | None:
    """Answer with another count of ids than it gives."""
    return web.json_response(server.reply(body, completion_tokens=99))


async def slow(server: Scripted, body: dict[str, Any]) -> web.StreamResponse | None:
    """Take a while; right otherwise."""
    await asyncio.sleep(0.2)
    return None


async def fails(server: Scripted, body: dict[str, Any]) -> web.StreamResponse | None:
    """Fail at once."""
    return web.Response(status=500)


async def is_full(server: Scripted, body: dict[str, Any]) -> web.StreamResponse | None:
    """Take nothing now."""
    return web.Response(status=503)


async def aborts(server: Scripted, body: dict[str, Any]) -> web.StreamResponse | None:
    """Abort with the ids so far."""
    finish = {"type": "abort", "message": "Aborted", "status_code": None}
    return web.json_response(server.reply(body, finish_reason=finish))


async def garbles(server: Scripted, body: dict[str, Any]) -> web.StreamResponse | None:
    """Answer what is no JSON."""
    return web.Response(text="{")


async def breaks_off(server: Scripted, body: dict[str, Any]) -> web.StreamResponse | None:
    """Break the connection."""
    transport = server.requests[-1].transport
    assert transport is not None
    transport.abort()
    return web.Response()


async def loses(server: Scripted, body: dict[str, Any]) -> web.StreamResponse | None:
    """Forget the row, and answer everything else."""
    server.running -= 1
    try:
        await asyncio.Event().wait()
    finally:
        server.running += 1
    return None


KINDS: tuple[Wrong, ...] = (
    *(refuses, short_context, other_weights, told_weights, loops, miscounts, slow, fails, is_full, aborts),
    *(garbles, breaks_off, loses),
)


@attrs.frozen
class Case:
    """What is drawn.

    Args:
        wrong: what the second server does instead of a right answer.
        first: rows that it answers rightly before.
        share: how many of its later answers are wrong.
        refused: numbers of the rows that no server takes.
    """

    wrong: Wrong
    first: int
    share: float
    refused: frozenset[int]


def drawn(luck: random.Random, wrong: Wrong) -> Case:
    """Return one case."""
    numbers = [number for number in range(ROWS) if number != PROMPT[-1]]  # that row is the control prompt
    refused = frozenset(luck.sample(numbers, luck.choice((0, 0, 1, 2))))
    return Case(wrong, luck.choice((0, 1, 4)), luck.choice((0.3, 1.0, 1.0)), refused)


def _misbehave(server: Scripted, case: Case, luck: random.Random, *, sick: bool) -> None:
    async def hook(body: dict[str, Any], before: int) -> web.StreamResponse | None:
        if body["input_ids"][2] in case.refused:
            return web.json_response({"error": {"message": "this row"}}, status=400)
        if sick and before >= case.first and luck.random() < case.share:
            return await case.wrong(server, body)
        await asyncio.sleep(0.01)
        return None

    server.hook = hook


def _is_kept(completion: Completion) -> bool:
    """Whether the checks behind the fleet would accept it: it ended by itself, and its counts agree."""
    return completion.sent and completion.finish_reason == "stop" and not integrity_alarm(completion, VOCAB)


async def _run(case: Case, luck: random.Random) -> tuple[ListLane, list[str]]:
    told: list[str] = []
    async with scripted_server() as sound, scripted_server() as sick:
        urls = (sound.url, sick.url) if luck.random() < 0.5 else (sick.url, sound.url)
        lanes = [ListLane(requests(ROWS // 2, first=first)) for first in (0, ROWS // 2)]
        async with Fleet(settings(*urls, patience=LIVELY), told.append) as fleet:
            await fleet.ensure()
            _misbehave(sound, case, luck, sick=False)
            _misbehave(sick, case, luck, sick=True)
            async with Dispatch(fleet, PLAN.sampling, VOCAB, MAX_ATTEMPTS) as dispatch:
                async with asyncio.timeout(LIMIT_SECONDS):
                    await asyncio.gather(*(dispatch.run(lane) for lane in lanes))
    whole = ListLane(requests(ROWS))
    whole.completions = [completion for lane in lanes for completion in lane.completions]
    return whole, told


async def _check(case: Case, luck: random.Random) -> None:
    lane, told = await _run(case, luck)
    rows, why = lane.by_row(), f"{case}, seed {SEED}: {told}"
    for completion in rows.values():
        if _is_kept(completion):
            assert completion.output_ids.tolist() == right_ids(completion.input_ids.tolist()), why
    unsent = {int(row.split("#")[0][2:]) for row, c in rows.items() if not c.sent}
    parked = [c.detail for c in rows.values() if not c.sent]
    assert unsent == case.refused, f"{why}: {parked}"


@pytest.mark.asyncio(loop_factories=["uvloop"])
@pytest.mark.parametrize("number", range(CASES))
async def test_a_server_that_is_wrong_but_answers_spoils_and_parks_no_row(number: int) -> None:
    """The run ends, every row once: what is kept is right, and only what no server takes is parked."""
    luck = random.Random(SEED * 1_000_003 + number)
    await _check(drawn(luck, KINDS[number % len(KINDS)]), luck)
