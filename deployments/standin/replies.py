"""The reply objects of /generate (managers/tokenizer_manager.py:2480 of sglang 0.5.23)."""

import time
from typing import Any

from tokenizers import Tokenizer

from deployments.standin.generation import Generation
from deployments.standin.logprobs import Alternative, Wish
from deployments.standin.stopping import shown_text

Entry = tuple[float | None, int, str | None]  # (natural logarithm, id, text if asked for)


def meta_info(
    generation: Generation, tokenizer: Tokenizer | None, weight_version: str, metrics: bool
) -> dict[str, Any]:
    """`meta_info` of a snapshot."""
    now, finish, count = time.time(), generation.finish, len(generation.output)
    meta: dict[str, Any] = {"id": generation.rid, "finish_reason": finish}
    if finish is not None and finish.get("message") == "Abort in waiting queue":
        times = {"e2e_latency": now - generation.created, "response_sent_to_client_ts": now}
        return {**meta, "weight_version": weight_version, "completion_tokens": 0, **times}
    meta |= {
        "prompt_tokens": len(generation.prompt),
        "weight_version": weight_version,
        "num_retractions": generation.retractions,
        "reasoning_tokens": generation.reasoning,
        "completion_tokens": count,
        "cached_tokens": generation.cached,
        "cached_tokens_details": {"device": generation.cached, "host": 0} if generation.cached else None,
        "dp_rank": None,
    }
    if generation.wish is not None:
        meta |= _told(generation, generation.wish, tokenizer)
    if finish is not None:
        meta["weight_versions"] = [{"version": weight_version, "start": 0, "end": count}]
        meta["e2e_latency"] = now - generation.created
    if not generation.sent:  # of a stream, the first chunk alone tells it
        meta["response_sent_to_client_ts"] = now
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
    meta = meta_info(generation, tokenizer, weight_version, metrics)
    body |= {"output_ids": generation.output, "meta_info": meta}
    if echo_prompt:
        body["prompt_token_ids"] = generation.prompt
    return body


def _told(generation: Generation, wish: Wish, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """The log probabilities of a snapshot.

    As genuine, the first prompt id that is told of has none, and a cap of 0 tells of the best ids only.
    """

    def entry(value: float | None, token: int) -> Entry:
        text = tokenizer.decode([token], skip_special_tokens=False) if wish.texts and tokenizer else None
        return value, token, text

    def best(alternatives: tuple[Alternative, ...]) -> list[Entry]:
        return [entry(*alternative) for alternative in alternatives]

    ids = [0 if token == wish.nameless else token for token in generation.prompt[wish.start :]]
    prompt, output = generation.prompt_scores, generation.scores[: len(generation.output)]
    told: dict[str, Any] = {
        "input_token_logprobs": [
            entry(value, token) for value, token in zip([None, *(s.value for s in prompt)], ids, strict=False)
        ],
        "output_token_logprobs": [entry(score.value, score.token) for score in output],
        "output_token_logprobs_length": len(output),
    }
    if wish.top > 0:
        told["input_top_logprobs"] = [None for _ in ids[:1]] + [best(score.best) for score in prompt]
        told["output_top_logprobs"] = [best(score.best) for score in generation.scores]
    return told
