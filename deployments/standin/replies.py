"""The reply objects of /generate (managers/tokenizer_manager.py:2480 of sglang 0.5.23)."""

import time
from typing import Any

from tokenizers import Tokenizer

from deployments.standin.generation import Generation
from deployments.standin.stopping import shown_text


def meta_info(generation: Generation, weight_version: str, metrics: bool) -> dict[str, Any]:
    """`meta_info` of a snapshot."""
    now, finish, count = time.time(), generation.finish, len(generation.output)
    meta: dict[str, Any] = {"id": generation.rid, "finish_reason": finish}
    if finish is not None and finish.get("message") == "Abort in waiting queue":
        return {**meta, "weight_version": weight_version, "completion_tokens": 0}
    meta |= {
        "prompt_tokens": len(generation.prompt),
        "weight_version": weight_version,
        "num_retractions": generation.retractions,
        "reasoning_tokens": 0,
        "completion_tokens": count,
        "cached_tokens": generation.cached,
        "weight_versions": [{"version": weight_version, "start": 0, "end": count}],
        "cached_tokens_details": {"device": generation.cached, "host": 0},
        "dp_rank": None,
    }
    if generation.wants_logprobs:
        pairs = zip(generation.logprobs, generation.output, strict=True)
        meta["output_token_logprobs"] = [[value, token, None] for value, token in pairs]
        meta["output_token_logprobs_length"] = count
        meta["input_token_logprobs"] = []
    if finish is not None:
        meta |= {"e2e_latency": now - generation.created, "response_sent_to_client_ts": now}
    if metrics:
        meta |= {"queue_time": 0.0, "request_received_ts": generation.created}
    return meta


def reply(
    generation: Generation, tokenizer: Tokenizer | None, weight_version: str, metrics: bool, echo_prompt: bool
) -> dict[str, Any]:
    """One item of a /generate reply to a snapshot.

    `tokenizer` is None with --skip-tokenizer-init: then no text, except "" for an abort in the queue.
    """
    body: dict[str, Any] = {}
    if tokenizer is not None or not generation.output:
        body["text"] = "" if tokenizer is None else shown_text(generation, tokenizer)
    body |= {"output_ids": generation.output, "meta_info": meta_info(generation, weight_version, metrics)}
    if echo_prompt:
        body["prompt_token_ids"] = generation.prompt
    return body
