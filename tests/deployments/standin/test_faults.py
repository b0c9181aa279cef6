"""Every fault switch, over a real socket."""

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from deployments.standin.fault_arrivals import REFUSALS
from deployments.standin.fault_replies import REPLIES
from deployments.standin.fault_sendings import SENDINGS
from deployments.standin.faults import FAULTS, Switches, parse_fault
from deployments.standin.launch import Standin
from tests.deployments.standin.conftest import Caller

END, CLOSER, VOCABULARY = 2036, 2047, 2048
EXACT = 18  # ids of the greedy answer to 2+2


async def switch(call: Caller, **faults: Any) -> None:
    """Switch faults on or off."""
    assert (await call("POST", "/standin/faults", faults)).status == 200


def _reason(body: dict[str, Any]) -> Any:
    return body["meta_info"]["finish_reason"]


Check = Callable[[dict[str, Any], list[int]], bool]
REPLY_FAULTS: dict[str, tuple[str, Check]] = {
    "strip_think": (
        "",
        lambda b, _: CLOSER not in b["output_ids"] and b["meta_info"]["completion_tokens"] == EXACT,
    ),
    "prompt_tail": ("3", lambda b, p: b["output_ids"][:3] == p[-3:] and len(b["output_ids"]) == EXACT + 3),
    "no_output_ids": ("", lambda b, _: "output_ids" not in b and "</think>" in b["text"]),
    "abort_200": (
        "aborted",
        lambda b, _: _reason(b)["message"] == "Aborted" and len(b["output_ids"]) == EXACT // 2,
    ),
    "nan_stop": ("", lambda b, _: _reason(b)["matched"] == "NaN happened" and b["output_ids"][-1] == END),
    "empty_ids": ("", lambda b, _: b["output_ids"] == [] and b["meta_info"]["completion_tokens"] == EXACT),
    "big_id": ("", lambda b, _: b["output_ids"][0] == VOCABULARY),
    "wrong_prompt_tokens": ("", lambda b, p: b["meta_info"]["prompt_tokens"] == len(p) - 1),
    "missing_optional_meta": ("", lambda b, _: set(b["meta_info"]) == {"id", "finish_reason"}),
    "extra_meta": ("", lambda b, _: "from_the_future" in b and "from_the_future" in b["meta_info"]),
}


@pytest.mark.parametrize(("name", "case"), REPLY_FAULTS.items(), ids=REPLY_FAULTS)
async def test_reply_faults(call: Caller, sum_prompt: list[int], name: str, case: tuple[str, Check]) -> None:
    """A fault of the reply acts as often as it was told, then the reply is right again."""
    argument, check = case
    await switch(call, **{name: f"{argument}*1"})
    assert check(await call.generate(sum_prompt), sum_prompt)
    right = await call.generate(sum_prompt)
    assert len(right["output_ids"]) == right["meta_info"]["completion_tokens"] == EXACT


ABORTS = {"queue": "Abort in waiting queue", "unavailable": "The request queue is full."}


@pytest.mark.parametrize(("form", "message"), ABORTS.items(), ids=ABORTS)
async def test_abort_forms(call: Caller, sum_prompt: list[int], form: str, message: str) -> None:
    """The other two forms of an abort in a 200."""
    await switch(call, abort_200=f"{form}*1")
    body = await call.generate(sum_prompt)
    assert (_reason(body)["message"], body["output_ids"]) == (message, [])


REFUSED = {
    "queue_full": ("", 503, "application/json"),
    "error_500_text": ("", 500, "text/plain"),
    "bad_request": ("string", 400, "application/json"),
}


@pytest.mark.parametrize(("name", "case"), REFUSED.items(), ids=REFUSED)
async def test_refusing_faults(
    call: Caller, sum_prompt: list[int], name: str, case: tuple[str, int, str]
) -> None:
    """A refusal costs no generation."""
    argument, status, kind = case
    before = (await call.counters())["generations_started"]
    await switch(call, **{name: f"{argument}*2"})
    body = {"input_ids": sum_prompt}
    answers = [await call("POST", "/generate", body) for _ in range(3)]
    assert [answer.status for answer in answers] == [status, status, 200]
    assert answers[0].kind == kind
    assert (await call.counters())["generations_started"] == before + 1


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
    await switch(call, **{name: "*1"})
    with pytest.raises(error):
        await asyncio.wait_for(call.generate(sum_prompt), 2)
    assert (await call.counters())["generations_finished"] == before + 1


async def test_slow_reply(call: Caller, sum_prompt: list[int]) -> None:
    """The reply waits as long as it was told."""
    begin = asyncio.get_running_loop().time()
    await switch(call, slow_reply="0.5*1")
    await call.generate(sum_prompt)
    assert asyncio.get_running_loop().time() - begin >= 0.5


async def test_reset_after_reply(call: Caller, standin: Standin) -> None:
    """The reply is whole, then the connection is reset."""
    await switch(call, reset_after_reply="*1")
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


async def test_cap_silently(call: Caller, sum_prompt: list[int]) -> None:
    """Fewer ids than asked for, and only the length says so."""
    await switch(call, cap_silently="4*1")
    assert _reason(await call.generate(sum_prompt)) == {"type": "length", "length": 4}


async def test_other_identity(call: Caller, sum_prompt: list[int]) -> None:
    """The server claims another model and other weights."""
    await switch(call, wrong_model="/other", weight_version="v2")
    model = (await call("GET", "/model_info")).body
    assert (model["model_path"], model["weight_version"]) == ("/other", "v2")
    assert (await call("GET", "/v1/models")).body["data"][0]["id"] == "/other"
    assert (await call.generate(sum_prompt))["meta_info"]["weight_version"] == "v2"
    await switch(call, wrong_model=None, weight_version=None)
    assert (await call("GET", "/model_info")).body["weight_version"] == "default"


async def test_hang(call: Caller, sum_prompt: list[int]) -> None:
    """The decoder stands still: requests wait, load snapshots grow stale; switched off, all goes on."""
    await switch(call, hang=True)
    task = asyncio.ensure_future(call.generate(sum_prompt))
    async with asyncio.timeout(20):
        while (load := (await call("GET", "/v1/loads")).body["loads"][0])["num_waiting_reqs"] == 0:
            pass
    again = (await call("GET", "/v1/loads")).body["loads"][0]
    assert again["timestamp"] == load["timestamp"]
    assert not task.done()
    await switch(call, hang=None)
    assert len((await task)["output_ids"]) == EXACT


async def test_deaf(start: Callable[..., Standin], connect: Callable[[str], Caller]) -> None:
    """Connections are accepted, nothing is answered."""
    call = connect(start().url)
    await switch(call, deaf=True)
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


async def test_unknown_fault_is_refused(call: Caller) -> None:
    """A name that is no fault is a 400 with the list of names."""
    answer = await call("POST", "/standin/faults", {"nope": 1})
    assert answer.status == 400
    assert "strip_think" in answer.body["error"]["message"]


SETTINGS = {
    "queue_full": ("", None),
    "queue_full*3": ("", 3),
    "slow_reply=0.5": ("0.5", None),
    "abort_200=queue*2": ("queue", 2),
    "crash_on_id=7+5": ("7+5", None),
}


@pytest.mark.parametrize(("text", "expected"), SETTINGS.items(), ids=SETTINGS)
def test_fault_syntax(text: str, expected: tuple[str, int | None]) -> None:
    """Names, arguments and times are told apart."""
    _, setting = parse_fault(text)
    assert (setting.argument, setting.left) == expected


def test_every_fault_is_described() -> None:
    """Every function of the tables is listed with a description, and the command line refuses other names."""
    assert {*REFUSALS, *REPLIES, *SENDINGS} <= set(FAULTS)
    with pytest.raises(ValueError, match="unknown fault"):
        Switches(("nope",))
