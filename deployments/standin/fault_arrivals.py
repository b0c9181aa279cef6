"""Faults that act on a /generate request before it is looked at, and on its prompt."""

import asyncio
from collections.abc import Callable

from aiohttp import web

from deployments.standin.errors import ApiError, bad_body, bad_contract, bad_value, queue_full
from deployments.standin.generation import Generation
from deployments.standin.server import Server


def _queue_full(_: str) -> ApiError:
    return queue_full()


def _error_500(_: str) -> ApiError:
    return ApiError(500, "Internal Server Error")


def _bad_request(shape: str) -> ApiError:
    if shape == "string":
        return bad_contract("unknown field `fault`, expected one of `max_new_tokens`, `stop`")
    if shape == "message":
        return bad_value("The fault switch refused this request.")
    return bad_body(("missing", ("body", "fault"), "Field required", {"input_ids": [1, 2, 3]}))


REFUSALS: dict[str, Callable[[str], ApiError]] = {
    "queue_full": _queue_full,
    "error_500_text": _error_500,
    "bad_request": _bad_request,
}


async def arrive(server: Server) -> None:
    """Act on a request that has just come in; raises ApiError, or never returns."""
    for name, refusal in REFUSALS.items():
        argument = server.switches.take(name, server.counters)
        if argument is not None:
            raise refusal(argument)
    await _count_down(server)


async def _count_down(server: Server) -> None:
    """crash_on_request: one less to go, or the end."""
    argument = server.switches.value("crash_on_request")
    if argument is None:
        return
    number, _, seconds = argument.partition("+")
    left = int(number) - 1
    server.switches.set("crash_on_request", f"{left}+{seconds or 0}")
    if left <= 0:
        server.counters.faults["crash_on_request"] += 1
        await die(server, float(seconds or 0))


async def look(server: Server, generations: list[Generation]) -> None:
    """Act on the prompts: the genuine death by a bad id, and crash_on_id."""
    if server.poisoned(generations):
        await die(server, None)
    argument = server.switches.value("crash_on_id")
    if argument is not None:
        token, _, seconds = argument.partition("+")
        if any(int(token) in generation.prompt for generation in generations):
            await die(server, float(seconds or 0))


async def die(server: Server, seconds: float | None) -> None:
    """Crash; never returns."""
    server.crash(seconds)
    await never()


async def never() -> web.Response:
    """Wait for ever (until the client or the process goes)."""
    forever: asyncio.Future[web.Response] = asyncio.get_running_loop().create_future()
    return await forever
