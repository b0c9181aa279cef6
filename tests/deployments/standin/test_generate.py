"""POST /generate over a real socket: shapes, ends, lengths (sglang 0.5.23)."""

import asyncio
import json
from itertools import pairwise
from typing import Any

import aiohttp
import pytest

from deployments.standin.counters import prompt_key
from deployments.standin.launch import Standin
from deployments.standin.template import ChatTemplate
from tests.deployments.standin.conftest import Caller

END, CLOSER = 2036, 2047
EXACT_SUM = "2 + 2 = 4.</think>2 + 2 is 4."


async def test_two_and_two_is_four(call: Caller, sum_prompt: list[int], template: ChatTemplate) -> None:
    """The first user's question: raw ids through the end token, text without it, counts that agree."""
    body = await call.generate(sum_prompt)
    assert body["text"] == EXACT_SUM
    assert body["output_ids"] == [*template.encode(EXACT_SUM), END]
    meta = body["meta_info"]
    assert meta["finish_reason"] == {"type": "stop", "matched": END}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (len(sum_prompt), len(body["output_ids"]))


END_CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str, int]] = {
    # sampling, finish_reason, text, ids
    "defaults": ({}, {"type": "stop", "matched": END}, EXACT_SUM, 18),
    "no_stop_trim": ({"no_stop_trim": True}, {"type": "stop", "matched": END}, EXACT_SUM, 18),
    "no_stop_trim, specials shown": (
        {"no_stop_trim": True, "skip_special_tokens": False},
        {"type": "stop", "matched": END},
        EXACT_SUM + "<|im_end|>",
        18,
    ),
    "stop id": ({"stop_token_ids": [CLOSER]}, {"type": "stop", "matched": CLOSER}, "2 + 2 = 4.", 9),
    "stop id kept": (
        {"stop_token_ids": [CLOSER], "no_stop_trim": True},
        {"type": "stop", "matched": CLOSER},
        "2 + 2 = 4.</think>",
        9,
    ),
    "stop text": ({"stop": " is"}, {"type": "stop", "matched": " is"}, "2 + 2 = 4.</think>2 + 2", 14),
    "stop regex, never trimmed": (
        {"stop_regex": "= [0-9]"},
        {"type": "stop", "matched": "= [0-9]"},
        "2 + 2 = 4",
        7,
    ),
    "no id": ({"max_new_tokens": 0}, {"type": "length", "length": 0}, "", 0),
    "no id, though it would be the stop": (
        {"max_new_tokens": 0, "logit_bias": {str(END): 1000}},
        {"type": "length", "length": 0},
        "",
        0,
    ),
    "length": ({"max_new_tokens": 3}, {"type": "length", "length": 3}, "2 + ", 3),
    "end on the last id": ({"max_new_tokens": 18}, {"type": "stop", "matched": END}, EXACT_SUM, 18),
    "ignore_eos ignores stop ids too": (
        {"ignore_eos": True, "stop_token_ids": [CLOSER], "max_new_tokens": 20},
        {"type": "length", "length": 20},
        "",
        20,
    ),
    "forced closer": (
        {"logit_bias": {str(CLOSER): 1000}, "max_new_tokens": 1},
        {"type": "length", "length": 1},
        "</think>",
        1,
    ),
    "forced end": (
        {"logit_bias": {str(END): 1000}, "max_new_tokens": 1},
        {"type": "stop", "matched": END},
        "",
        1,
    ),
    "not before": ({"min_new_tokens": 18, "max_new_tokens": 18}, {"type": "length", "length": 18}, "", 18),
}


@pytest.mark.parametrize(("sampling", "finish", "text", "count"), END_CASES.values(), ids=END_CASES)
async def test_ends(
    call: Caller,
    sum_prompt: list[int],
    sampling: dict[str, Any],
    finish: dict[str, Any],
    text: str,
    count: int,
) -> None:
    """Ids hold everything through the stop; trimming and skipping touch the text only."""
    body = await call.generate(sum_prompt, **sampling)
    assert body["meta_info"]["finish_reason"] == finish
    assert len(body["output_ids"]) == count
    if text:
        assert body["text"] == text


LENGTHS = {  # of a context of 512: prompt, max_new_tokens, ids made or None for a 400
    "fits": (100, 5, 5),
    "silently capped": (500, 12, 10),
    "until the context ends": (505, None, 5),
    "one too many": (500, 13, None),
    "longest input": (505, 1, 1),
    "input too long": (506, 1, None),
    "longer than the context": (512, 1, None),
}


@pytest.mark.parametrize(("length", "limit", "made"), LENGTHS.values(), ids=LENGTHS)
async def test_length_arithmetic(call: Caller, length: int, limit: int | None, made: int | None) -> None:
    """Accept, cap silently or refuse exactly where SGLang does."""
    params = {"temperature": 0, "ignore_eos": True, "max_new_tokens": limit}
    answer = await call("POST", "/generate", {"input_ids": [40] * length, "sampling_params": params})
    if made is None:
        assert answer.status == 400
        assert "tokens" in answer.body["error"]["message"]
    else:
        assert answer.body["meta_info"]["finish_reason"] == {"type": "length", "length": made}
        assert len(answer.body["output_ids"]) == made


async def test_batch_keeps_order(call: Caller, sum_prompt: list[int]) -> None:
    """A batch answers an array in input order; rids get numbers; copies of an item stand together."""
    other = [*sum_prompt[:-1], 2046]
    body = {
        "input_ids": [sum_prompt, [40, 41]],
        "rid": "job",
        "sampling_params": {"temperature": 0, "max_new_tokens": 4},
    }
    answer = await call("POST", "/generate", body)
    assert [item["meta_info"]["id"] for item in answer.body] == ["job_0", "job_1"]
    assert [item["meta_info"]["prompt_tokens"] for item in answer.body] == [len(other), 2]
    body["sampling_params"] = {"temperature": 0, "max_new_tokens": 4, "n": 2}
    copies = (await call("POST", "/generate", body)).body
    assert [item["meta_info"]["prompt_tokens"] for item in copies] == [len(other), len(other), 2, 2]
    assert len({item["meta_info"]["id"] for item in copies} - {"job"}) == 4


async def test_batch_of_one_is_an_array(call: Caller, sum_prompt: list[int]) -> None:
    """The shape of the request decides the shape of the reply."""
    answer = await call(
        "POST", "/generate", {"input_ids": [sum_prompt], "sampling_params": {"max_new_tokens": 1}}
    )
    assert isinstance(answer.body, list)


async def test_reasoning_is_counted_on_demand(call: Caller, sum_prompt: list[int]) -> None:
    """With a reasoning parser and require_reasoning the ids through the closer are counted."""
    for asked, limit, count in ((True, 64, 9), (True, 3, 3), (False, 64, 0)):
        body = await call.generate(sum_prompt, {"require_reasoning": asked}, max_new_tokens=limit)
        assert body["meta_info"]["reasoning_tokens"] == count


async def test_echo(call: Caller, sum_prompt: list[int]) -> None:
    """The prompt comes back on demand."""
    body = await call.generate(sum_prompt, {"return_prompt_token_ids": True}, max_new_tokens=1)
    assert body["prompt_token_ids"] == sum_prompt


async def test_stream_is_cumulative(call: Caller, sum_prompt: list[int]) -> None:
    """Chunks grow to the whole reply; only the last one says why it ended; [DONE] closes."""
    body = {
        "input_ids": sum_prompt,
        "stream": True,
        "sampling_params": {"temperature": 0, "max_new_tokens": 64},
    }
    async with call.session.post("/generate", json=body) as reply:
        lines = [line for line in (await reply.text()).split("\n\n") if line]
    assert lines.pop() == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
    for before, after in pairwise(chunks):
        assert after["output_ids"][: len(before["output_ids"])] == before["output_ids"]
        assert before["meta_info"]["finish_reason"] is None
    stamped = ["response_sent_to_client_ts" in chunk["meta_info"] for chunk in chunks]
    assert stamped == [True] + [False] * (len(chunks) - 1)  # as genuine, of the first chunk only
    whole = await call.generate(sum_prompt)
    assert (chunks[-1]["output_ids"], chunks[-1]["text"]) == (whole["output_ids"], whole["text"])


async def test_leaving_aborts(call: Caller, standin: Standin) -> None:
    """A client that disconnects takes its generation with it."""
    before = (await call.counters())["generations_aborted"]
    body = {"input_ids": [40], "stream": True, "sampling_params": {"ignore_eos": True, "max_new_tokens": 500}}
    async with aiohttp.ClientSession(standin.url) as session:
        reply = await session.post("/generate", json=body)
        await reply.content.readline()
        reply.close()
    async with asyncio.timeout(20):
        while (await call.counters())["generations_aborted"] == before:
            pass
    assert (await call("GET", "/v1/loads")).body["loads"][0]["num_running_reqs"] == 0


async def test_counters_know_prompts(call: Caller) -> None:
    """Counters tell how often each prompt was started and finished."""
    prompt = [40, 41, 42, 43]
    for _ in range(2):
        await call.generate(prompt, max_new_tokens=1)
    counters = await call.counters()
    assert (
        counters["prompts_started"][prompt_key(prompt)]
        == counters["prompts_finished"][prompt_key(prompt)]
        == 2
    )
