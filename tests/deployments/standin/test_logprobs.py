"""Log probabilities on /generate: right against the decoder, in the shapes of sglang 0.5.23."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from deployments.standin.arguments import MODEL
from deployments.standin.launch import Standin
from deployments.standin.network import Network
from deployments.standin.weights import load
from tests.deployments.standin.conftest import Caller

TOLERANCE = 1e-3
VOCABULARY = 2048
CLOSER = VOCABULARY - 1
# What sglang 0.5.23 told of "What is 2+2?" (17 ids) on the bundled model: float32, CPU, greedy,
# {"return_logprob": true, "logprob_start_len": 0, "top_logprobs_num": 2, "max_new_tokens": 3}, 2026-11-29.
GENUINE_INPUT = (
    "-10.39104 -18.13829 -17.04185 -11.18672 -10.35435 -17.28858 -2.92141 -16.26155 -1.13166 "
    "-17.93090 -11.90641 -24.91508 -8.79967 -5.76618 -7.76219 -12.64446"
)
GENUINE_OUTPUT = [(-0.96999, 17), (-0.00002, 332), (0.0, 220)]
GENUINE_BEST = [[(-0.96999, 17), (-1.56690, 577)], [(-0.00002, 332), (-11.41917, 396)]]
# The same, "temperature": 0.5: the distribution that ids are drawn from.
GENUINE_COLD = [(-0.63233, 17), (-1.82615, 577), (-1.86146, 40)]


@pytest.fixture(scope="module")
def network() -> Network:
    """A decoder of our own."""
    return Network(load(MODEL), 1, 1024)


def raw_logits(network: Network, ids: list[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """float64[n, vocabulary]: the logits behind each id."""
    rows: list[Any] = []
    context = np.array(ids, np.intp)
    while len(rows) < len(ids):
        rows += list(network.logits(network.prefill(0, context, len(rows))))
    return np.array(rows, np.float64)


def logs(logits: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Natural logarithm of the softmax of each row."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def asked(start: int = -1, top: int = 0, **fields: Any) -> dict[str, Any]:
    """The fields that ask for log probabilities."""
    return {"return_logprob": True, "logprob_start_len": start, "top_logprobs_num": top, **fields}


def close(told: list[list[Any]], expected: list[tuple[float, int]]) -> bool:
    """Whether ids are equal and values nearly."""
    if [entry[1] for entry in told] != [token for _, token in expected]:
        return False
    return np.allclose([entry[0] for entry in told], [value for value, _ in expected], atol=TOLERANCE)


DRAWN: dict[str, tuple[dict[str, Any], float]] = {  # sampling, what divides the logits
    "greedy": ({"temperature": 0}, 1.0),
    "greedy by top_k": ({"temperature": 0.5, "top_k": 1}, 1.0),
    "drawn": ({"temperature": 1.0}, 1.0),
    "hot, cut by top_p": ({"temperature": 2.0, "top_p": 0.8, "sampling_seed": 5}, 2.0),
    "cold": ({"temperature": 0.5, "sampling_seed": 6}, 0.5),
    "forced id": ({"temperature": 1.0, "logit_bias": {"700": 11.5}}, 1.0),
}


@pytest.mark.parametrize(("sampling", "divisor"), DRAWN.values(), ids=DRAWN)
async def test_output_values_are_the_decoders(
    call: Caller, network: Network, sum_prompt: list[int], sampling: dict[str, Any], divisor: float
) -> None:
    """Values and best ids of a sequence are those of the decoder forced along it: after bias, divided."""
    body = await call.generate(sum_prompt, asked(top=4), max_new_tokens=40, ignore_eos=True, **sampling)
    output, meta = body["output_ids"], body["meta_info"]
    logits = raw_logits(network, sum_prompt + output)[len(sum_prompt) - 1 : -1]
    for token, bias in sampling.get("logit_bias", {}).items():
        logits[:, int(token)] += bias
    lines = logs(logits / divisor)
    values = lines[np.arange(len(output)), output].tolist()
    assert close(meta["output_token_logprobs"], list(zip(values, output, strict=True)))
    assert meta["output_token_logprobs_length"] == 40
    for told, line in zip(meta["output_top_logprobs"], lines, strict=True):
        assert np.allclose([entry[0] for entry in told], np.sort(line)[::-1][:4], atol=TOLERANCE)
        assert np.allclose(line[[entry[1] for entry in told]], [entry[0] for entry in told], atol=TOLERANCE)


@pytest.mark.parametrize("repeats", [1, 20], ids=["short", "in many pieces"])
@pytest.mark.parametrize("temperature", [0, 1], ids=["greedy", "drawn"])
async def test_input_values_equal_those_kept(
    call: Caller, sum_prompt: list[int], repeats: int, temperature: int
) -> None:
    """Prompt and output sent back as a prompt give the values that were told at generation."""
    prompt = sum_prompt * repeats
    kept = await call.generate(prompt, asked(top=3), temperature=temperature, max_new_tokens=60)
    whole = prompt + kept["output_ids"]
    again = (await call.generate(whole, asked(len(prompt) - 1, 3), max_new_tokens=0))["meta_info"]
    first, *told = again["input_token_logprobs"]
    assert first == [None, prompt[-1], None]
    values = [entry[0] for entry in kept["meta_info"]["output_token_logprobs"]]
    assert np.allclose([entry[0] for entry in told], values, atol=TOLERANCE)
    unnamed = [0 if token == CLOSER else token for token in kept["output_ids"]]  # as genuine
    assert [entry[1] for entry in told] == unnamed
    assert again["input_top_logprobs"][0] is None
    best = kept["meta_info"]["output_top_logprobs"]
    for one, other in zip(again["input_top_logprobs"][1:], best, strict=True):
        assert np.allclose([e[0] for e in one], [e[0] for e in other], atol=TOLERANCE)


async def test_values_are_genuine(call: Caller, sum_prompt: list[int]) -> None:
    """A genuine server told the same numbers."""
    meta = (await call.generate(sum_prompt, asked(0, 2), max_new_tokens=3))["meta_info"]
    genuine = list(zip(map(float, GENUINE_INPUT.split()), sum_prompt[1:], strict=True))
    assert meta["input_token_logprobs"][0] == [None, sum_prompt[0], None]
    assert close(meta["input_token_logprobs"][1:], genuine)
    assert close(meta["output_token_logprobs"], GENUINE_OUTPUT)
    for told, best in zip(meta["output_top_logprobs"], GENUINE_BEST, strict=False):
        assert close(told, best)
    cold = await call.generate(sum_prompt, asked(top=3), temperature=0.5, max_new_tokens=1)
    assert close(cold["meta_info"]["output_top_logprobs"][0], GENUINE_COLD)


STARTS = {  # of 17 prompt ids: logprob_start_len, entries
    "output only": (-1, 0),
    "whole prompt": (0, 17),
    "middle": (15, 2),
    "last id": (16, 1),
    "behind it": (17, 0),
}


@pytest.mark.parametrize(("start", "count"), STARTS.values(), ids=STARTS)
async def test_prompt_part(call: Caller, sum_prompt: list[int], start: int, count: int) -> None:
    """The prompt is told of from logprob_start_len on; the first id there has no value."""
    meta = (await call.generate(sum_prompt, asked(start, 1), max_new_tokens=1))["meta_info"]
    told = meta["input_token_logprobs"]
    assert [entry[1] for entry in told] == sum_prompt[len(sum_prompt) - count :]
    assert [entry[0] is None for entry in told] == [True, *[False] * count][:count]
    assert [best is None for best in meta["input_top_logprobs"]] == [True, *[False] * count][:count]


async def test_texts_and_a_cap_of_zero(call: Caller, sum_prompt: list[int]) -> None:
    """Texts come on demand; a cap of 0 scores the prompt alone, and still tells the best next ids."""
    fields = asked(16, 1, return_text_in_logprobs=True)
    meta = (await call.generate(sum_prompt, fields, max_new_tokens=1))["meta_info"]
    assert meta["input_token_logprobs"] == [[None, 2046, "<think>"]]
    assert meta["output_token_logprobs"][0][1:] == [17, "2"]
    assert meta["output_top_logprobs"][0][0][1:] == [17, "2"]
    meta = (await call.generate(sum_prompt, fields, max_new_tokens=0))["meta_info"]
    assert (meta["output_token_logprobs"], meta["output_token_logprobs_length"]) == ([], 0)
    assert [len(best) for best in meta["output_top_logprobs"]] == [1]


async def test_each_item_of_a_batch_asks_for_itself(call: Caller, sum_prompt: list[int]) -> None:
    """Lists give each prompt its own wish; who does not ask is told nothing."""
    body = {
        "input_ids": [sum_prompt, sum_prompt],
        "sampling_params": {"temperature": 0, "max_new_tokens": 2},
        "return_logprob": [True, False],
        "top_logprobs_num": [1, 0],
        "logprob_start_len": [15, -1],
    }
    asking, other = (item["meta_info"] for item in (await call("POST", "/generate", body)).body)
    assert (len(asking["input_top_logprobs"]), len(asking["output_top_logprobs"])) == (2, 2)
    assert not [name for name in other if "logprobs" in name]


async def test_neighbours_and_retraction_change_nothing(call: Caller, sum_prompt: list[int]) -> None:
    """Alone, in a crowd, or sent back to the queue half-way: the same numbers."""
    sampling = {"temperature": 1.0, "max_new_tokens": 400, "ignore_eos": True}
    names = ("input_token_logprobs", "output_token_logprobs", "output_top_logprobs")

    async def told(seed: int) -> dict[str, Any]:
        body = await call.generate(sum_prompt * 4, asked(0, 2), sampling_seed=seed, **sampling)
        return dict(body["meta_info"])

    alone = [await told(seed) for seed in (1, 2)]
    crowd = await asyncio.gather(*map(told, [1, 2, 3, 4, 1]))
    for one, other in zip(alone, crowd, strict=False):
        assert [one[name] for name in names] == [other[name] for name in names]
    before = (await call.counters())["generations_started"]
    task = asyncio.ensure_future(told(1))
    while (await call.counters())["generations_started"] == before:
        pass
    await call("POST", "/pause_generation", {"mode": "retract"})
    await call("POST", "/continue_generation", {})
    back = await task
    assert back["num_retractions"] == 1
    for name in names[:2]:
        assert close(back[name][1:], [(entry[0], entry[1]) for entry in alone[0][name][1:]])


async def test_stream_tells_so_far(call: Caller, sum_prompt: list[int]) -> None:
    """Each chunk has as many values as ids, and the prompt's from the first on."""
    body = {
        "input_ids": sum_prompt,
        "stream": True,
        "sampling_params": {"temperature": 0, "max_new_tokens": 12},
        **asked(10, 1),
    }
    async with call.session.post("/generate", json=body) as reply:
        events = [line.removeprefix("data: ") for line in (await reply.text()).split("\n\n") if line]
    for chunk in map(json.loads, events[:-1]):
        meta = chunk["meta_info"]
        assert [entry[1] for entry in meta["output_token_logprobs"]] == chunk["output_ids"]
        assert len(meta["input_token_logprobs"]) == len(meta["input_top_logprobs"]) == 7


async def test_original_values_by_environment(
    start: Callable[..., Standin], connect: Callable[[str], Caller], network: Network, sum_prompt: list[int]
) -> None:
    """With SGLANG_RETURN_ORIGINAL_LOGPROB the temperature is left out."""
    call = connect(start(SGLANG_RETURN_ORIGINAL_LOGPROB="1").url)
    body = await call.generate(sum_prompt, asked(), temperature=2.0, max_new_tokens=1)
    line = logs(raw_logits(network, sum_prompt)[-1:])[0]
    assert close(body["meta_info"]["output_token_logprobs"], [(line[t], t) for t in body["output_ids"]])
