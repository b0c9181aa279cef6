"""Faults of replies and refusals, over a real socket, and how faults are named."""

from collections.abc import Callable
from typing import Any

import pytest

from deployments.standin.fault_arrivals import REFUSALS
from deployments.standin.fault_replies import REPLIES
from deployments.standin.fault_sendings import SENDINGS
from deployments.standin.faults import FAULTS, Switches, parse_fault
from tests.deployments.standin.conftest import Caller

END, CLOSER, VOCABULARY = 2036, 2047, 2048
EXACT = 18  # ids of the greedy answer to 2+2


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
    await call.switch(**{name: f"{argument}*1"})
    assert check(await call.generate(sum_prompt), sum_prompt)
    right = await call.generate(sum_prompt)
    assert len(right["output_ids"]) == right["meta_info"]["completion_tokens"] == EXACT


ABORTS = {"queue": "Abort in waiting queue", "unavailable": "The request queue is full."}


@pytest.mark.parametrize(("form", "message"), ABORTS.items(), ids=ABORTS)
async def test_abort_forms(call: Caller, sum_prompt: list[int], form: str, message: str) -> None:
    """The other two forms of an abort in a 200."""
    await call.switch(abort_200=f"{form}*1")
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
    await call.switch(**{name: f"{argument}*2"})
    body = {"input_ids": sum_prompt}
    answers = [await call("POST", "/generate", body) for _ in range(3)]
    assert [answer.status for answer in answers] == [status, status, 200]
    assert answers[0].kind == kind
    assert (await call.counters())["generations_started"] == before + 1


async def test_length_first(call: Caller, sum_prompt: list[int]) -> None:
    """At the cap an end id is `length`, as up to 0.5.16; before it, and without the switch, it is `stop`."""
    told = []
    for cap in (EXACT, EXACT + 1, EXACT):
        body = await call.generate(sum_prompt, max_new_tokens=cap)
        told.append((len(body["output_ids"]), body["output_ids"][-1], _reason(body)))
        await call.switch(length_first=True)
    stop, length = {"type": "stop", "matched": END}, {"type": "length", "length": EXACT}
    assert told == [(EXACT, END, stop), (EXACT, END, stop), (EXACT, END, length)]


async def test_cap_silently(call: Caller, sum_prompt: list[int]) -> None:
    """Fewer ids than asked for, and only the length says so."""
    await call.switch(cap_silently="4*1")
    assert _reason(await call.generate(sum_prompt)) == {"type": "length", "length": 4}


async def test_other_identity(call: Caller, sum_prompt: list[int]) -> None:
    """The server claims another model and other weights."""
    await call.switch(wrong_model="/other", weight_version="v2", told_slots="4096")
    model = (await call("GET", "/model_info")).body
    assert (model["model_path"], model["weight_version"]) == ("/other", "v2")
    assert (await call("GET", "/v1/models")).body["data"][0]["id"] == "/other"
    assert (await call.generate(sum_prompt))["meta_info"]["weight_version"] == "v2"
    assert (await call("GET", "/v1/loads")).body["loads"][0]["max_running_requests"] == 4096
    await call.switch(wrong_model=None, weight_version=None, told_slots=None)
    assert (await call("GET", "/model_info")).body["weight_version"] == "default"


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
