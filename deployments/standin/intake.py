"""A /generate body to generations: SGLang's checks in SGLang's order."""

import uuid
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import orjson
from tokenizers import Tokenizer

from deployments.standin.errors import bad_body, bad_contract, bad_value
from deployments.standin.generation import Generation
from deployments.standin.logprobs import Wish
from deployments.standin.parameters import (
    Frame,
    check_contract,
    check_ranges,
    choice_of,
    effective_limit,
    stops_of,
)

LOGPROB_FIELDS = {
    "return_logprob": "BoolOrList",
    "logprob_start_len": "Int64OrList",
    "top_logprobs_num": "Int64OrList",
}
INPUT_MARGIN = 5  # max_req_input_len = max_req_len - 5 (managers/tp_worker.py:567)


@dataclass(frozen=True, slots=True)
class Intake:
    """The generations of one request and the shape of its reply."""

    generations: list[Generation]
    single: bool
    stream: bool
    echo_prompt: bool


def read_body(raw: bytes) -> dict[str, Any]:
    """The JSON object of a request; raises ApiError with pydantic's shape."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise bad_body(("json_invalid", ("body", error.pos), "JSON decode error", {})) from error
    if not isinstance(body, dict):
        raise bad_body(("dict_type", ("body",), "Input should be a valid dictionary", body))
    return body


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_types(body: dict[str, Any]) -> None:
    """What pydantic and the contract refuse."""
    for name, kind in LOGPROB_FIELDS.items():
        if isinstance(body.get(name), str):
            raise bad_contract(
                f'invalid type: string "{body[name]}", expected a value or an array of values for {kind}'
            )
    rid, ids = body.get("rid"), body.get("input_ids")
    if rid is not None and not isinstance(rid, str | list):
        raise bad_body(
            ("string_type", ("body", "rid", "str"), "Input should be a valid string", rid),
            ("list_type", ("body", "rid", "list[str]"), "Input should be a valid list", rid),
        )
    if ids is not None and not isinstance(ids, list):
        told = f"Value error, must be list or null; got {type(ids).__name__}"
        raise bad_body(("value_error", ("body", "input_ids"), told, ids))
    for item in ids or []:
        for inner in item if isinstance(item, list) else [item]:
            if isinstance(inner, bool):
                raise bad_contract(f"invalid type: boolean `{str(inner).lower()}`, expected i64")
            if not _is_id(inner):
                raise bad_body(("int_type", ("body", "input_ids"), "Input should be a valid integer", ids))


def _prompts(body: dict[str, Any], tokenizer: Tokenizer | None) -> tuple[list[list[int]], bool]:
    """(prompts, single): the first element decides between one prompt and a batch."""
    ids, text = body.get("input_ids"), body.get("text")
    if ids is None and text is None:
        raise bad_value("Either text, input_ids or input_embeds should be provided.")
    if ids is None:
        if tokenizer is None:
            raise bad_value(
                "The engine initialized with skip_tokenizer_init=True cannot accept text prompts."
            )
        texts = [text] if isinstance(text, str) else list(text or [])
        return [list(tokenizer.encode(t, add_special_tokens=False).ids) for t in texts], isinstance(text, str)
    if not ids:
        raise bad_value("input_ids cannot be empty.")
    return (ids, False) if isinstance(ids[0], list) else ([ids], True)


def _params(body: dict[str, Any], count: int) -> list[dict[str, Any]]:
    given = body.get("sampling_params") or {}
    each = given if isinstance(given, list) else [given] * count
    for params in each:
        check_contract(params)
    return each


def _rids(body: dict[str, Any], count: int, single: bool, copies: int) -> list[str]:
    """One rid per generation; with copies the given one is discarded."""
    rid = body.get("rid")
    if rid is None or copies > 1:
        return [uuid.uuid4().hex for _ in range(count * copies)]
    if single:
        return [rid if isinstance(rid, str) else rid[0]]
    if isinstance(rid, str):
        return [f"{rid}_{i}" for i in range(count)]
    if len(rid) != count:
        raise bad_value("The specified rids length mismatch with the batch_size for batch processing.")
    twice = sorted({r for r in rid if rid.count(r) > 1})
    if twice:
        raise bad_value(f"Duplicate request IDs detected within the request: {twice}")
    return list(rid)


def check_length(length: int, frame: Frame) -> None:
    """Refuse a prompt that the context or the input limit cannot hold."""
    if length >= frame.context:
        raise bad_value(
            f"The input ({length} tokens) is longer than the model's context length ({frame.context} tokens)."
        )
    most = frame.longest - INPUT_MARGIN
    if length >= most:
        raise bad_value(
            f"Input length ({length} tokens) exceeds the maximum allowed length ({most} tokens). "
            "Use a shorter input or enable --allow-auto-truncate."
        )


def intake(body: dict[str, Any], frame: Frame, tokenizer: Tokenizer | None, taken: Container[str]) -> Intake:
    """Build the generations of a body; `taken` holds the rids in flight. Raises ApiError."""
    _check_types(body)
    prompts, single = _prompts(body, tokenizer)
    params = _params(body, len(prompts))
    copies = max(p.get("n") or 1 for p in params)
    rids = _rids(body, len(prompts), single, copies)
    for rid in rids:
        if rid in taken:
            raise bad_value(f"Duplicate request ID detected: {rid}")
    if body.get("return_hidden_states"):
        raise bad_value(
            "The server is not configured to return hidden states. Please set `--return-hidden-states-mode "
            "last`, `--return-hidden-states-mode full`, or the legacy `--enable-return-hidden-states` flag."
        )
    generations = []
    for place, rid in enumerate(rids):
        item = place // copies
        generation = _generation(rid, prompts[item], params[item], body, frame)
        generation.wish = _wish(body, item, generation, frame)
        generations.append(generation)
    return Intake(
        generations,
        single and copies == 1,
        body.get("stream") is True,
        body.get("return_prompt_token_ids") is True,
    )


def _generation(
    rid: str, prompt: list[int], params: dict[str, Any], body: dict[str, Any], frame: Frame
) -> Generation:
    """One generation, its length and ranges checked; raises ApiError."""
    check_length(len(prompt), frame)
    limit = effective_limit(params, len(prompt), frame)
    check_ranges(params, frame.vocabulary)
    return Generation(
        rid=rid,
        prompt=prompt,
        choice=choice_of(params, frame),
        stops=stops_of(params, limit, frame),
        closer=frame.closer if body.get("require_reasoning") is True else None,
        streams=body.get("stream") is True,
    )


def _wish(body: dict[str, Any], item: int, generation: Generation, frame: Frame) -> Wish | None:
    """What an item of a batch wants to know of log probabilities; raises ApiError."""

    def get(name: str, default: int) -> int:
        value = body.get(name)
        value = value[item] if isinstance(value, list) else value
        return default if value is None else int(value)

    if not get("return_logprob", 0):
        return None
    length, start = len(generation.prompt), get("logprob_start_len", -1)
    if start > length:
        raise bad_value(
            f"req.logprob_start_len={start} is higher than the number of input tokens "
            f"len(req.origin_input_ids)={length}. Please use a smaller logprob_start_len."
        )
    choice = generation.choice
    return Wish(
        start=length if start == -1 else start,
        top=get("top_logprobs_num", 0),
        texts=body.get("return_text_in_logprobs") is True,
        temperature=1.0 if choice.greedy or frame.original_logprobs else choice.temperature,
        nameless=frame.vocabulary - 1,  # genuine: scheduler_components/logprob_result_processor.py:53
    )
