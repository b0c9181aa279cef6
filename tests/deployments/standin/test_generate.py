"""POST /generate over a real socket: shapes, ends, lengths, errors (sglang 0.5.23)."""

import asyncio
import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import aiohttp
import pytest

from deployments.standin.counters import prompt_key
from deployments.standin.launch import Standin
from deployments.standin.template import ChatTemplate
from tests.deployments.standin.conftest import Caller

END, CLOSER, VOCABULARY = 2036, 2047, 2048
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
    "stop regex": ({"stop_regex": "= [0-9]"}, {"type": "stop", "matched": "= [0-9]"}, "2 + 2 ", 7),
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
    "rid that is a number": ({"input_ids": [1], "rid": 7}, OBJECT, "1 validation error"),
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


async def test_logprobs_and_echo(call: Caller, sum_prompt: list[int]) -> None:
    """Log probabilities carry an independent copy of the ids; the prompt comes back on demand."""
    body = await call.generate(sum_prompt, {"return_logprob": True, "return_prompt_token_ids": True})
    pairs = body["meta_info"]["output_token_logprobs"]
    assert [pair[1] for pair in pairs] == body["output_ids"]
    assert all(pair[0] <= 0 for pair in pairs)
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
    whole = await call.generate(sum_prompt)
    assert (chunks[-1]["output_ids"], chunks[-1]["text"]) == (whole["output_ids"], whole["text"])


async def test_stream_of_a_bad_request(call: Caller) -> None:
    """A stream that cannot start is 200 with an error event."""
    answer = await call("POST", "/generate", {"input_ids": [], "stream": True})
    assert answer.status == 200
    assert json.loads(answer.body.split("\n\n")[0].removeprefix("data: "))["error"]["code"] == 400
    assert answer.body.endswith("data: [DONE]\n\n")


async def test_seed_decides(call: Caller, sum_prompt: list[int]) -> None:
    """With deterministic inference equal seeds give equal ids in any company; no seed means seed 42."""
    sampling = {"temperature": 1.5, "max_new_tokens": 40}
    alone = [
        (await call.generate(sum_prompt, sampling_seed=seed, **sampling))["output_ids"] for seed in range(20)
    ]
    crowd = await asyncio.gather(
        *(call.generate(sum_prompt, sampling_seed=seed, **sampling) for seed in [*range(20), *range(20)])
    )
    assert [body["output_ids"] for body in crowd] == alone + alone
    assert len({tuple(ids) for ids in alone}) > 10
    default = await call.generate(sum_prompt, **sampling)
    assert (
        default["output_ids"] == (await call.generate(sum_prompt, sampling_seed=42, **sampling))["output_ids"]
    )


async def test_seed_is_ignored_without_the_flag(
    start: Callable[..., Standin], connect: Callable[[str], Caller], sum_prompt: list[int]
) -> None:
    """A server without deterministic inference draws anew each time, whatever the seed."""
    call = connect(start().url)
    bodies = [
        await call.generate(sum_prompt, sampling_seed=1, temperature=1.5, max_new_tokens=40) for _ in range(8)
    ]
    assert len({tuple(body["output_ids"]) for body in bodies}) > 1


async def test_ids_only_server(
    start: Callable[..., Standin], connect: Callable[[str], Caller], sum_prompt: list[int]
) -> None:
    """With --skip-tokenizer-init replies have no text, and prompts must be ids."""
    call = connect(start("--skip-tokenizer-init").url)
    body = await call.generate(sum_prompt)
    assert "text" not in body
    assert body["output_ids"][-1] == END
    assert (await call("POST", "/generate", {"text": "hi"})).status == 400


async def test_queue_limit(start: Callable[..., Standin], connect: Callable[[str], Caller]) -> None:
    """One slot and one place in the queue: the third request is a 503, the others finish."""
    call = connect(start("--max-running-requests", "1", "--max-queued-requests=1").url)
    body = {"input_ids": [40], "sampling_params": {"ignore_eos": True, "max_new_tokens": 600}}
    answers = [asyncio.ensure_future(call("POST", "/generate", body)) for _ in range(3)]
    refused = (await next(asyncio.as_completed(answers))).body
    assert refused["message"] == "The request queue is full."
    assert refused["code"] == 503
    assert sorted([(await answer).status for answer in answers]) == [200, 200, 503]


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


POISON = {"id beyond the vocabulary": [VOCABULARY], "negative id": [-1], "empty item": [[]]}


@pytest.mark.parametrize("ids", POISON.values(), ids=POISON)
async def test_bad_ids_kill(
    start: Callable[..., Standin], connect: Callable[[str], Caller], ids: list[Any]
) -> None:
    """What kills a genuine server kills this one: a lost connection, then nobody listens."""
    standin = start()
    call = connect(standin.url)
    with pytest.raises(aiohttp.ClientError):
        await call("POST", "/generate", {"input_ids": ids})
    await asyncio.to_thread(standin.process.wait, 10)
    with pytest.raises(aiohttp.ClientConnectorError):
        await call("GET", "/model_info")
