"""Faults of the connection and of the process: lost replies, hangs, deafness, crashes."""

import asyncio
from collections.abc import Callable

import aiohttp
import pytest

from deployments.standin.launch import Standin
from tests.deployments.standin.conftest import Caller

EXACT = 18  # ids of the greedy answer to 2+2

BROKEN: dict[str, tuple[str, type[BaseException]]] = {
    "lost_reply": ("", TimeoutError),
    "reset_before_reply": ("", aiohttp.ClientError),
    "truncate_body": ("", aiohttp.ClientPayloadError),
    "wrong_json": ("", ValueError),
}


@pytest.mark.parametrize(("name", "case"), BROKEN.items(), ids=BROKEN)
async def test_broken_sendings(
    call: Caller, sum_prompt: list[int], name: str, case: tuple[str, type[BaseException]]
) -> None:
    """The generation was made, and the client has nothing of it."""
    _, error = case
    before = (await call.counters())["generations_finished"]
    await call.switch(**{name: "*1"})
    with pytest.raises(error):
        await asyncio.wait_for(call.generate(sum_prompt), 2)
    assert (await call.counters())["generations_finished"] == before + 1


async def test_slow_reply(call: Caller, sum_prompt: list[int]) -> None:
    """The reply waits as long as it was told."""
    begin = asyncio.get_running_loop().time()
    await call.switch(slow_reply="0.5*1")
    await call.generate(sum_prompt)
    assert asyncio.get_running_loop().time() - begin >= 0.5


async def test_reset_after_reply(call: Caller, standin: Standin) -> None:
    """The reply is whole, then the connection is reset."""
    await call.switch(reset_after_reply="*1")
    reader, writer = await asyncio.open_connection("127.0.0.1", int(standin.url.rpartition(":")[2]))
    body = b'{"input_ids": [40], "sampling_params": {"max_new_tokens": 1}}'
    lines = [
        "POST /generate HTTP/1.1",
        "Host: x",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    head = "\r\n".join([*lines, "", ""])
    writer.write(head.encode() + body)
    answer = await reader.readuntil(b"\r\n\r\n")
    length = int(answer.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    assert b'"output_ids"' in await reader.readexactly(length)
    async with asyncio.timeout(20):
        with pytest.raises(ConnectionResetError):
            await reader.read()
    writer.close()


async def test_hang(call: Caller, sum_prompt: list[int]) -> None:
    """The decoder stands still: requests wait, the load snapshot stands still; switched off, all goes on."""
    await call.switch(hang=True)
    load = (await call("GET", "/v1/loads")).body["loads"]
    before = (await call("GET", "/standin/counters")).body["requests"]
    task = asyncio.ensure_future(call.generate(sum_prompt))
    async with asyncio.timeout(20):
        while (await call("GET", "/standin/counters")).body["requests"] == before:
            pass
    assert (await call("GET", "/v1/loads")).body["loads"] == load
    assert not task.done()
    await call.switch(hang=None)
    assert len((await task)["output_ids"]) == EXACT


async def test_deaf(start: Callable[..., Standin], connect: Callable[[str], Caller]) -> None:
    """Connections are accepted, nothing is answered."""
    call = connect(start().url)
    await call.switch(deaf=True)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(call("GET", "/model_info"), 0.5)


CRASHES = {"request": ("crash_on_request=2", [40]), "id": ("crash_on_id=77", [40, 77])}


@pytest.mark.parametrize(("fault", "poison"), CRASHES.values(), ids=CRASHES)
async def test_crashes(
    start: Callable[..., Standin], connect: Callable[[str], Caller], fault: str, poison: list[int]
) -> None:
    """The second request, or a certain id, kills the process; what came before was served."""
    standin = start("--fault", fault)
    call = connect(standin.url)
    await call.generate([40], max_new_tokens=1)
    with pytest.raises(aiohttp.ClientError):
        await call.generate(poison, max_new_tokens=1)
    assert await asyncio.to_thread(standin.process.wait, 10) == 1


async def test_slow_crash_answers_nothing(
    start: Callable[..., Standin], connect: Callable[[str], Caller]
) -> None:
    """While a crash is on its way, no other endpoint answers."""
    call = connect(start("--fault", "crash_on_request=1+30").url)
    dying = asyncio.ensure_future(call.generate([40]))
    answered = True
    async with asyncio.timeout(20):
        while answered:
            try:
                await asyncio.wait_for(call("GET", "/model_info"), 0.5)
            except TimeoutError:
                answered = False
    assert not dying.done()
    dying.cancel()


async def test_keepalive(start: Callable[..., Standin]) -> None:
    """An idle connection is closed after the time given."""
    standin = start("--fault", "keepalive=0.3")
    host, port = "127.0.0.1", int(standin.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(20):
        await reader.read()
    writer.close()
