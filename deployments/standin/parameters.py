"""`sampling_params` of a request: contract, ranges, and what the decoder makes of them (sglang 0.5.23)."""

import math
import re
import secrets
from dataclasses import dataclass
from typing import Any

from deployments.standin.errors import bad_contract, bad_value
from deployments.standin.generation import Stops
from deployments.standin.sampling import GREEDY_BELOW, Choice

_NUMBER, _INTEGER, _BOOLEAN = "f64", "i64", "a boolean"
KINDS = {
    "max_new_tokens": _INTEGER,
    "stop": "text",
    "stop_token_ids": "ids",
    "stop_regex": "text",
    "temperature": _NUMBER,
    "top_p": _NUMBER,
    "top_k": _INTEGER,
    "min_p": _NUMBER,
    "frequency_penalty": _NUMBER,
    "presence_penalty": _NUMBER,
    "repetition_penalty": _NUMBER,
    "min_new_tokens": _INTEGER,
    "n": _INTEGER,
    "beam_width": _INTEGER,
    "json_schema": "any",
    "regex": "any",
    "ebnf": "any",
    "structural_tag": "any",
    "ignore_eos": _BOOLEAN,
    "skip_special_tokens": _BOOLEAN,
    "spaces_between_special_tokens": _BOOLEAN,
    "no_stop_trim": _BOOLEAN,
    "stream_interval": _INTEGER,
    "logit_bias": "any",
    "sampling_seed": _INTEGER,
    "custom_params": "any",
    "watermark": "any",
}
DEFAULT_NEW_TOKENS = 128
DETERMINISTIC_SEED = 42  # what a genuine server takes for every request that names no seed

# (name, lowest, lowest included, highest, text after "must be ")
_RANGES = (
    ("temperature", 0.0, True, math.inf, "a non-negative finite number"),
    ("top_p", 0.0, False, 1.0, "in (0, 1]"),
    ("min_p", 0.0, True, 1.0, "in [0, 1]"),
    ("top_k", 1, True, math.inf, "-1 (disable) or at least 1"),
    ("frequency_penalty", -2.0, True, 2.0, "in [-2, 2]"),
    ("presence_penalty", -2.0, True, 2.0, "in [-2, 2]"),
    ("repetition_penalty", 0.0, False, 2.0, "in (0, 2] (1.0 = no penalty)"),
)


@dataclass(frozen=True, slots=True)
class Frame:
    """What a server fixes for every request."""

    vocabulary: int
    end_ids: frozenset[int]
    deterministic: bool
    context: int
    longest: int  # max_req_len = min(context, pool) - 1
    closer: int | None = None  # id that ends the reasoning, with a reasoning parser
    original_logprobs: bool = False  # SGLANG_RETURN_ORIGINAL_LOGPROB


def check_contract(params: dict[str, Any]) -> None:
    """Refuse unknown names and wrong types; raises ApiError."""
    for name, value in params.items():
        if name not in KINDS:
            known = ", ".join(f"`{key}`" for key in KINDS)
            raise bad_contract(f"unknown field `{name}`, expected one of {known}")
        kind = KINDS[name]
        if value is not None and not _fits(value, kind):
            raise bad_contract(f"invalid type: {_described(value)}, expected {kind}")


def _fits(value: Any, kind: str) -> bool:
    if kind == _NUMBER:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind == _INTEGER:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == _BOOLEAN:
        return isinstance(value, bool)
    if kind == "ids":
        return isinstance(value, list) and all(_fits(item, _INTEGER) for item in value)
    if kind == "text":
        return isinstance(value, str) or (
            isinstance(value, list) and all(isinstance(item, str) for item in value)
        )
    return True


def _described(value: Any) -> str:
    if isinstance(value, bool):
        return f"boolean `{str(value).lower()}`"
    if isinstance(value, str):
        return f'string "{value}"'
    if isinstance(value, int | float):
        return f"{'integer' if isinstance(value, int) else 'floating point'} `{value}`"
    return "map" if isinstance(value, dict) else "sequence"


def check_ranges(params: dict[str, Any], vocabulary: int) -> None:
    """Refuse values out of range; raises ApiError."""
    greedy = 0 <= (1.0 if params.get("temperature") is None else params["temperature"]) < GREEDY_BELOW
    for name, low, included, high, wanted in _RANGES:
        value = params.get(name)
        if name == "top_k" and (greedy or value == -1):  # a temperature of 0 replaces it unseen, as genuine
            continue
        if value is not None and not (
            (value > low or (included and value == low)) and value <= high and math.isfinite(value)
        ):
            raise bad_value(f"{name} must be {wanted}, got {value}.")
    limit, least = _limit(params), params.get("min_new_tokens") or 0
    if least < 0:
        raise bad_value(f"min_new_tokens must be in [0, max_new_tokens], got {least}.")
    if limit is not None and limit < 0:
        raise bad_value(f"max_new_tokens must be at least 0, got {limit}.")
    if limit is not None and least > limit:
        raise bad_value(f"min_new_tokens must be in [0, max_new_tokens({limit})], got {least}.")
    for key in params.get("logit_bias") or {}:
        if not (key.isdecimal() and int(key) < vocabulary):
            raise bad_value(f"logit_bias must has keys in [0, {vocabulary - 1}], got {key}.")


def _limit(params: dict[str, Any]) -> int | None:
    limit: int | None = params.get("max_new_tokens", DEFAULT_NEW_TOKENS)
    return limit


def effective_limit(params: dict[str, Any], length: int, frame: Frame) -> int:
    """Most new ids after a prompt of `length`: refused beyond the context, silently capped below it."""
    limit = _limit(params)
    if limit is not None and length + limit > frame.context:
        raise bad_value(
            f"Requested token count exceeds the model's maximum context length of {frame.context} tokens. "
            f"You requested a total of {length + limit} tokens: {length} tokens from the input messages and "
            f"{limit} tokens for the completion. Please reduce the number of tokens in the input messages or "
            "the completion to fit within the limit."
        )
    room = frame.longest - length - 1
    return room if limit is None else min(limit, room)


def choice_of(params: dict[str, Any], frame: Frame) -> Choice:
    """The sampler's settings; absent and null values take SGLang's defaults."""

    def get(name: str, default: Any) -> Any:
        value = params.get(name)
        return default if value is None else value

    seed = get("sampling_seed", DETERMINISTIC_SEED) if frame.deterministic else secrets.randbits(63)
    return Choice(
        temperature=get("temperature", 1.0),
        top_p=get("top_p", 1.0),
        top_k=get("top_k", -1),
        min_p=get("min_p", 0.0),
        frequency_penalty=get("frequency_penalty", 0.0),
        presence_penalty=get("presence_penalty", 0.0),
        repetition_penalty=get("repetition_penalty", 1.0),
        min_new_tokens=get("min_new_tokens", 0),
        seed=seed,
        logit_bias=tuple((int(key), float(value)) for key, value in get("logit_bias", {}).items()),
        banned_early=tuple(frame.end_ids | frozenset(get("stop_token_ids", []))),
    )


def stops_of(params: dict[str, Any], limit: int, frame: Frame) -> Stops:
    """What ends the generation; ignore_eos ignores the request's own stop_token_ids too, as genuine."""

    def texts(name: str) -> tuple[str, ...]:
        value = params.get(name) or []
        return (value,) if isinstance(value, str) else tuple(value)

    ids = frame.end_ids | frozenset(params.get("stop_token_ids") or [])
    return Stops(
        limit=limit,
        ids=frozenset() if params.get("ignore_eos") else ids,
        texts=texts("stop"),
        patterns=tuple(re.compile(pattern) for pattern in texts("stop_regex")),
        skip_special_tokens=params.get("skip_special_tokens") is not False,
        no_stop_trim=params.get("no_stop_trim") is True,
    )
