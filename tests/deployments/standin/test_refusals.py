"""POST /generate refused, and prompts that kill (sglang 0.5.23)."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from deployments.standin.launch import Standin
from tests.deployments.standin.conftest import Caller

VOCABULARY = 2048
MESSAGE, STRING, OBJECT = "message", "string", "object"
REFUSALS: dict[str, tuple[Any, str, str]] = {
    "no prompt": ({}, MESSAGE, "Either text, input_ids or input_embeds should be provided."),
    "empty prompt": ({"input_ids": []}, MESSAGE, "input_ids cannot be empty."),
    "unknown sampling key": (
        {"input_ids": [1], "sampling_params": {"seed": 1}},
        STRING,
        "unknown field `seed`",
    ),
    "wrong sampling type": (
        {"input_ids": [1], "sampling_params": {"temperature": "hot"}},
        STRING,
        'invalid type: string "hot", expected f64',
    ),
    "boolean id": ({"input_ids": [True]}, STRING, "invalid type: boolean `true`, expected i64"),
    "id that is no number": ({"input_ids": ["a"]}, OBJECT, "1 validation error"),
    "rid that is a number": ({"input_ids": [1], "rid": 7}, OBJECT, "2 validation errors"),
    "no JSON": (b"{", OBJECT, "1 validation error"),
    "bare NaN": (b'{"input_ids": [1], "x": NaN}', OBJECT, "1 validation error"),
    "temperature": (
        {"input_ids": [1], "sampling_params": {"temperature": -1}},
        MESSAGE,
        "temperature must be a non-negative finite number, got -1.",
    ),
    "top_p": (
        {"input_ids": [1], "sampling_params": {"top_p": 0}},
        MESSAGE,
        "top_p must be in (0, 1], got 0.",
    ),
    "top_k": (
        {"input_ids": [1], "sampling_params": {"top_k": 0}},
        MESSAGE,
        "top_k must be -1 (disable) or at least 1, got 0.",
    ),
    "repetition_penalty": (
        {"input_ids": [1], "sampling_params": {"repetition_penalty": 0}},
        MESSAGE,
        "repetition_penalty must be in (0, 2] (1.0 = no penalty), got 0.",
    ),
    "min_new_tokens below 0": (
        {"input_ids": [1], "sampling_params": {"min_new_tokens": -1}},
        MESSAGE,
        "min_new_tokens must be in [0, max_new_tokens], got -1.",
    ),
    "logprob_start_len": (
        {"input_ids": [1], "return_logprob": True, "logprob_start_len": 2},
        MESSAGE,
        "req.logprob_start_len=2 is higher than the number of input tokens len(req.origin_input_ids)=1.",
    ),
    "return_logprob that is text": (
        {"input_ids": [1], "return_logprob": "yes"},
        STRING,
        'invalid type: string "yes", expected a value or an array of values for BoolOrList',
    ),
    "min_new_tokens": (
        {"input_ids": [1], "sampling_params": {"min_new_tokens": 9, "max_new_tokens": 3}},
        MESSAGE,
        "min_new_tokens must be in [0, max_new_tokens(3)], got 9.",
    ),
    "logit_bias": (
        {"input_ids": [1], "sampling_params": {"logit_bias": {"2048": 1}}},
        MESSAGE,
        "logit_bias must has keys in [0, 2047], got 2048.",
    ),
    "same rid twice": (
        {"input_ids": [[1], [2]], "rid": ["a", "a"]},
        MESSAGE,
        "Duplicate request IDs detected within the request: ['a']",
    ),
    "too few rids": (
        {"input_ids": [[1], [2]], "rid": ["a"]},
        MESSAGE,
        "The specified rids length mismatch with the batch_size for batch processing.",
    ),
    "hidden states": (
        {"input_ids": [1], "return_hidden_states": True},
        MESSAGE,
        "not configured to return hidden",
    ),
}


@pytest.mark.parametrize(("body", "shape", "text"), REFUSALS.values(), ids=REFUSALS)
async def test_refusals(call: Caller, body: Any, shape: str, text: str) -> None:
    """Each bad request gets a 400 in the shape that SGLang gives it."""
    answer = await call("POST", "/generate", body)
    assert (answer.status, answer.kind) == (400, "application/json")
    message = answer.body["message"] if shape == OBJECT else answer.body["error"]
    assert text in (message["message"] if shape == MESSAGE else message)


async def test_stream_of_a_bad_request(call: Caller) -> None:
    """A stream that cannot start is 200 with an error event."""
    answer = await call("POST", "/generate", {"input_ids": [], "stream": True})
    assert answer.status == 200
    assert json.loads(answer.body.split("\n\n")[0].removeprefix("data: "))["error"]["code"] == 400
    assert answer.body.endswith("data: [DONE]\n\n")


async def test_top_k_zero_is_greedy(call: Caller, sum_prompt: list[int]) -> None:
    """A temperature of 0 replaces top_k before it is looked at."""
    assert await ids_of(call, sum_prompt, top_k=0) == await ids_of(call, sum_prompt)


async def ids_of(call: Caller, prompt: list[int], **sampling: Any) -> list[int]:
    """Greedy ids."""
    return list((await call.generate(prompt, **sampling))["output_ids"])


POISON: dict[str, dict[str, Any]] = {
    "id beyond the vocabulary": {"input_ids": [VOCABULARY]},
    "negative id": {"input_ids": [-1]},
    "empty item": {"input_ids": [[]]},
    "logprob_start_len below -1": {"input_ids": [1], "return_logprob": True, "logprob_start_len": -5},
}


@pytest.mark.parametrize("body", POISON.values(), ids=POISON)
async def test_poison_kills(
    start: Callable[..., Standin], connect: Callable[[str], Caller], body: dict[str, Any]
) -> None:
    """What kills a genuine server kills this one: a lost connection, then nobody listens."""
    standin = start()
    call = connect(standin.url)
    with pytest.raises(aiohttp.ClientError):
        await call("POST", "/generate", body)
    await asyncio.to_thread(standin.process.wait, 10)
    with pytest.raises(aiohttp.ClientConnectorError):
        await call("GET", "/model_info")
