"""Flags of the command line that change what /generate answers (sglang 0.5.23)."""

import asyncio
from collections.abc import Callable

from deployments.standin.launch import Standin
from tests.deployments.standin.conftest import Caller

END = 2036


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
