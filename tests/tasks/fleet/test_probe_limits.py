"""What the probe asks fits the server, and what a server refuses for good is told at once."""

from pathlib import Path
from typing import Any

import attrs
import pytest
from aiohttp import web

from deployments.standin.launch import start_standin
from tasks.errors import SurroundingsError
from tasks.fleet.ensure import ensure_servers
from tasks.sglang.judge import FAITHFUL
from tests.support.embedded import fleet_settings
from tests.support.scripted import PLAN, Scripted, scripted_server, settings


@pytest.mark.process
async def test_a_server_with_a_small_context_is_probed(tmp_path: Path) -> None:
    """A context of 256 ids: the stand-in refuses what does not fit as SGLang does, and the probe fits."""
    server = start_standin(["--context-length", "256"], tmp_path / "log")
    try:
        limits = fleet_settings(server.url, ready_timeout_seconds=5.0)
        plan = attrs.evolve(limits.plan, max_new_tokens=512)
        (report,) = await ensure_servers(attrs.evolve(limits, plan=plan))
    finally:
        server.end()
    assert report.info.context_length == 256
    assert report.probe.natural_ids.size <= 256


@pytest.mark.parametrize(
    ("info", "most"),
    [
        pytest.param({"max_total_num_tokens": 200}, 200 - 2 - PLAN.input_ids.size, id="a small KV pool"),
        pytest.param({}, 512 - 2 - PLAN.input_ids.size, id="the context"),
    ],
)
async def test_the_cap_of_the_natural_answer_is_what_the_server_takes(
    info: dict[str, Any], most: int
) -> None:
    """As for a row: what context and KV pool leave beside the prompt, in `/generate` and in the chat."""
    async with scripted_server() as server:
        server.info |= info
        (report,) = await ensure_servers(settings(server.url))
    assert report.probe.verdict == FAITHFUL
    assert max(body["sampling_params"]["max_new_tokens"] for body in server.seen) == most


async def test_a_prompt_that_no_server_takes_is_told_at_once() -> None:
    """A context shorter than the probe's question: named with both numbers, nothing is asked."""
    async with scripted_server() as server:
        server.info["max_req_input_len"] = 3
        with pytest.raises(
            SurroundingsError, match=rf"{server.url}: .*at most 2 ids.*got 3: .*context-length"
        ):
            await ensure_servers(settings(server.url))
    assert server.seen == []


def _refusing(server: Scripted, status: int, message: str, times: int) -> list[int]:
    """Refuse natural answers so often; return the list of those that were refused."""
    right, refused = server.generate, list[int]()

    async def generate(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if "logit_bias" not in body["sampling_params"] and len(refused) < times:
            refused.append(status)
            return web.json_response({"error": {"message": message}}, status=status)
        return await right(request)

    server.generate = generate  # type: ignore[method-assign]
    return refused


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_request_that_is_refused_for_good_is_told_at_once(status: int) -> None:
    """It is asked once, not for half an hour; the error names URL, status, message and what to do."""
    async with scripted_server() as server:
        await server.stop()
        refused = _refusing(server, status, "top_k is forbidden here", 10**9)
        await server.start_again()
        words = rf"{server.url}/generate: HTTP {status}: top_k is forbidden here.*sampling"
        with pytest.raises(SurroundingsError, match=words):
            await ensure_servers(settings(server.url, ready_timeout_seconds=5.0))
    assert len(refused) == 1


@pytest.mark.parametrize("status", [408, 429, 503, 500])
async def test_a_busy_server_is_asked_again(status: int) -> None:
    """A status that says "later" proves nothing: the probe is made again and passes."""
    async with scripted_server() as server:
        await server.stop()
        refused = _refusing(server, status, "later", 2)
        await server.start_again()
        (report,) = await ensure_servers(settings(server.url))
    assert (report.probe.verdict, len(refused)) == (FAITHFUL, 2)


async def test_a_full_server_is_not_unfaithful() -> None:
    """429 to a forced id is no evidence against the server."""
    async with scripted_server() as server:
        await server.stop()
        right, refused = server.generate, list[int]()

        async def generate(request: web.Request) -> web.StreamResponse:
            if not refused:
                refused.append(429)
                return web.json_response({"message": "The request queue is full."}, status=429)
            return await right(request)

        server.generate = generate  # type: ignore[method-assign]
        await server.start_again()
        (report,) = await ensure_servers(settings(server.url))
    assert (report.probe.verdict, refused) == (FAITHFUL, [429])
