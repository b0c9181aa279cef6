"""Abort, pause, flush, and the parsers on chat completions (sglang 0.5.23)."""

import asyncio
import json
from typing import Any

import pytest

from deployments.standin.reasoning import split_calls, split_reasoning
from tests.deployments.standin.conftest import Caller

CLOSER = 2047
LONG = {"ignore_eos": True, "max_new_tokens": 500, "temperature": 0}


async def running(call: Caller, rid: str) -> "asyncio.Future[Any]":
    """A long generation that has a slot."""
    before = (await call.counters())["generations_started"]
    body = {"input_ids": [40], "rid": rid, "sampling_params": LONG}
    task = asyncio.ensure_future(call("POST", "/generate", body))
    async with asyncio.timeout(20):
        while (await call.counters())["generations_started"] == before:
            pass
    return task


async def test_abort_matches_prefixes(call: Caller) -> None:
    """Aborting job-1 ends job-10 too, with HTTP 200 and the ids so far; a rid not in flight ends nothing."""
    tasks = [await running(call, rid) for rid in ("job-1", "job-10")]
    for rid in ("nobody", "job"):
        assert (await call("POST", "/abort_request", {"rid": rid})).status == 200
    assert not any(task.done() for task in tasks)
    answer = await call("POST", "/abort_request", {"rid": "job-1"})
    assert (answer.status, answer.body) == (200, "")
    for ended in await asyncio.gather(*tasks):
        assert ended.status == 200
        reason = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
        assert ended.body["meta_info"]["finish_reason"] == reason
        assert len(ended.body["output_ids"]) < 500
        assert len(ended.body["output_ids"]) == ended.body["meta_info"]["completion_tokens"]


async def test_a_client_that_leaves_takes_its_prefix_along(call: Caller) -> None:
    """A broken connection aborts as /abort_request does, so rids should be equally long."""
    leaving, staying = [await running(call, rid) for rid in ("left-1", "left-10")]
    leaving.cancel()
    assert (await staying).body["meta_info"]["finish_reason"]["message"] == "Aborted"


async def test_abort_in_the_queue(call: Caller) -> None:
    """What has not begun comes back 200, empty, with the other message."""
    await call("POST", "/pause_generation", {"mode": "in_place"})
    task = asyncio.ensure_future(call("POST", "/generate", {"input_ids": [40], "rid": "waits"}))
    async with asyncio.timeout(20):
        while (await call("GET", "/v1/loads")).body["loads"][0]["num_waiting_reqs"] == 0:
            pass
    await call("POST", "/abort_request", {"abort_all": True})
    body = (await task).body
    await call("POST", "/continue_generation", {})
    assert body["output_ids"] == []
    assert body["meta_info"]["finish_reason"] == {"type": "abort", "message": "Abort in waiting queue"}
    assert "prompt_tokens" not in body["meta_info"]


PAUSES = {"in_place": 0, "retract": 1}


@pytest.mark.parametrize(("mode", "retractions"), PAUSES.items(), ids=PAUSES)
async def test_pause_and_continue(call: Caller, mode: str, retractions: int) -> None:
    """A pause stops a generation and readiness; after it the generation ends as if nothing had been."""
    task = await running(call, f"paused-{mode}")
    answer = await call("POST", "/pause_generation", {"mode": mode})
    assert answer.body == {"message": "Generation paused successfully.", "status": "ok"}
    assert (await call("GET", "/ready")).status == 503
    assert not task.done()
    await call("POST", "/continue_generation", {})
    body = (await task).body
    assert len(body["output_ids"]) == 500
    assert body["meta_info"]["num_retractions"] == retractions
    assert (await call("GET", "/ready")).status == 200


async def test_pause_aborts_by_default(call: Caller) -> None:
    """A pause without a mode ends what runs."""
    task = await running(call, "ended")
    await call("POST", "/pause_generation", {})
    assert (await task).body["meta_info"]["finish_reason"]["message"] == "Aborted"
    await call("POST", "/continue_generation", {})


async def test_duplicate_rid_in_flight(call: Caller) -> None:
    """A rid that is in flight is refused; afterwards it may be used again."""
    task = await running(call, "same")
    again = await call("POST", "/generate", {"input_ids": [40], "rid": "same"})
    assert again.body == {"error": {"message": "Duplicate request ID detected: same"}}
    await call("POST", "/abort_request", {"rid": "same"})
    await task
    assert (await call("POST", "/generate", {"input_ids": [40], "rid": "same"})).status == 200


async def test_flush_cache_needs_idleness(call: Caller) -> None:
    """Flushing while something runs is a 400."""
    task = await running(call, "busy")
    assert (await call("POST", "/flush_cache")).status == 400
    await call("POST", "/abort_request", {"rid": "busy"})
    await task
    assert (await call("GET", "/flush_cache")).status == 200


TOOL = {
    "type": "function",
    "function": {"name": "search", "parameters": {"properties": {"query": {"type": "string"}}}},
}
QUESTION = {"messages": [{"role": "user", "content": "What is 2+2?"}], "temperature": 0}
CHATS: dict[str, tuple[dict[str, Any], tuple[str | None, str | None]]] = {
    "split": ({}, ("2 + 2 = 4.", "2 + 2 is 4.")),
    "not split on request": ({"separate_reasoning": False}, (None, "2 + 2 = 4.</think>2 + 2 is 4.")),
    "thinking off": ({"chat_template_kwargs": {"thinking": False}}, (None, "2 + 2 is 4.")),
    "cut in reasoning": ({"max_tokens": 3}, ("2 + ", "")),
}


@pytest.mark.parametrize(("extra", "expected"), CHATS.values(), ids=CHATS)
async def test_chat_splits_reasoning(
    call: Caller, extra: dict[str, Any], expected: tuple[str | None, str | None]
) -> None:
    """With the parser on, chat completions part reasoning from content."""
    choice = (await call("POST", "/v1/chat/completions", QUESTION | extra)).body["choices"][0]
    assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == expected


async def test_chat_counts_reasoning(call: Caller) -> None:
    """Usage counts the ids through the closer; the ids themselves come on demand."""
    body = (await call("POST", "/v1/chat/completions", QUESTION | {"return_token_ids": True})).body
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 9}
    ids = body["choices"][0]["response_token_ids"]
    assert len(ids) == body["usage"]["completion_tokens"]
    assert ids[8] == CLOSER


async def test_chat_streams_deltas(call: Caller) -> None:
    """The deltas of a stream add up to the parted message."""
    answer = await call("POST", "/v1/chat/completions", QUESTION | {"stream": True})
    events = [line.removeprefix("data: ") for line in answer.body.split("\n\n") if line]
    assert events.pop() == "[DONE]"
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "2 + 2 = 4."
    assert "".join(delta.get("content") or "" for delta in deltas) == "2 + 2 is 4."


async def test_chat_calls_a_tool(call: Caller) -> None:
    """A declared tool is called, and the parser reads the call out of the text."""
    messages = [{"role": "user", "content": "Please call search with music."}]
    body = {"messages": messages, "tools": [TOOL], "temperature": 0}
    choice = (await call("POST", "/v1/chat/completions", body)).body["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "search"


async def test_separate_reasoning(call: Caller) -> None:
    """The text endpoint splits at the first closer."""
    answer = await call(
        "POST", "/separate_reasoning", {"text": "r</think>a</think>b", "reasoning_parser": "kimi_k2"}
    )
    assert answer.body == {"reasoning_text": "r", "text": "a</think>b"}


SECTION = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}"
    "<|tool_call_end|><|tool_calls_section_end|>"
)
SPLITS = {
    "closed": ("r</think>c", ("r", "c")),
    "never closed": ("r", ("r", "")),
    "opener repeated": ("<think>r</think>c", ("r", "c")),
    "tool section closes": (f"r{SECTION}", ("r", SECTION)),
}


@pytest.mark.parametrize(("text", "expected"), SPLITS.values(), ids=SPLITS)
def test_split_reasoning(text: str, expected: tuple[str, str]) -> None:
    """Text before the closer, or before a tool section, is reasoning."""
    assert split_reasoning(text) == expected


def test_split_calls() -> None:
    """Calls leave the text and keep id, name and arguments."""
    content, calls = split_calls(f"a{SECTION}b")
    assert content == "ab"
    assert calls[0]["id"] == "functions.f:0"
    assert calls[0]["function"] == {"name": "f", "arguments": "{}"}
    assert split_calls("plain") == ("plain", [])
