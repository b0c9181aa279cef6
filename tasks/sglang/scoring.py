"""Log probabilities of given ids: what is asked of a server, and what it tells (pure).

Read in SGLang 0.5.23, seen on a live one. Those of prompt ids belong to the raw distribution: temperature 1,
no penalty, nothing cut off. Those told with generated ids belong to the one that ids are drawn from: after
penalties and temperature, before top-k, top-p and min-p (`layers/sampler.py`); for greedy decoding raw ones.
The last id of the vocabulary is told as 0 in a prompt. A `logprob_start_len` below -1 kills a server.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
import numpy as np
import orjson
from numpy.typing import NDArray

from tasks.rows.records import Ids
from tasks.sglang.outcomes import AttemptError, cut_body, read_error, short_value

Floats = NDArray[np.float64]

BYTES_PER_ENTRY: Final = 64
"""Bound of one `[logprob, id, null]` in a reply: a float64 of at most 25 digits, an id, brackets."""

KEPT_DECIMALS: Final = 5
"""Of a kept log probability: finer than any two kernels agree, and half the bytes of a float64."""


@attrs.frozen(slots=True, eq=False)
class Scores:
    """What a server thinks of the output ids of a row.

    Args:
        values: float64[n]: natural logarithm of each id's raw probability.
        best: float64[n, k]: those of the k most likely ids at its place, best first.
    """

    values: Floats
    best: Floats


def score_payload(ids: Ids, start: int, top: int, rid: str) -> dict[str, Any]:
    """Return the body of `POST /generate` that has ids scored and generates nothing.

    Args:
        ids: int32[n]: prompt and output.
        start: index of the first output id, at least 1.
        top: how many of the most likely ids are told at each place.
        rid: fresh for every attempt.
    """
    return {
        "rid": rid,
        "input_ids": ids,
        "sampling_params": {"temperature": 1.0, "max_new_tokens": 0},
        "stream": False,
        "return_logprob": True,
        "logprob_start_len": start - 1,
        "top_logprobs_num": top,
    }


def read_scores(row_id: str, ids: Ids, start: int, status: int, body: bytes, url: str) -> Scores:
    """Return what a server told of `ids[start:]`.

    Raises:
        AttemptError: try again.
        RowError: `prompt_too_long`, or `poison` for a request that the server refuses for good.
        SurroundingsError: the key is missing or wrong, or this is no SGLang server.
    """
    if status != 200:
        raise read_error(row_id, status, body, url)
    where = f"{url}: {row_id}"
    try:
        meta = orjson.loads(body)["meta_info"]
        told, best = meta["input_token_logprobs"][1:], meta["input_top_logprobs"][1:]
        named = [entry[1] for entry in told]
        values = np.array([entry[0] for entry in told], np.float64)
        table = np.array([[entry[0] for entry in row] for row in best], np.float64)
    except (orjson.JSONDecodeError, KeyError, TypeError, IndexError, ValueError):
        raise AttemptError(
            "malformed", f"{where}: expected input_token_logprobs, got {cut_body(body)}"
        ) from None
    count = ids.size - start
    if not _same(named, ids[start:].tolist()) or table.ndim != 2 or len(table) != count:
        raise AttemptError("malformed", f"{where}: expected the {count} ids that were sent, got others")
    if not (np.isfinite(values).all() and np.isfinite(table).all()):
        raise AttemptError("malformed", f"{where}: expected numbers as logprobs, got NaN")
    return Scores(values, table)


def kept_logprobs(meta: Mapping[str, Any], output: Ids) -> dict[str, Any]:
    """Return the fact `logprobs` of a generated row: one per output id; or why there is none.

    Speculative decoding has told more of them than there are ids (SGLang pull 20799).
    """
    told = meta.get("output_token_logprobs")
    try:
        values = [_logprob(entry[0]) for entry in told or ()]
        same = _same([entry[1] for entry in told or ()], output.tolist())
    except (TypeError, IndexError, KeyError, ValueError):
        same = False
    if not same:
        return {"logprobs_fault": f"expected one for each of {output.size} ids, got {short_value(told)}"}
    return {"logprobs": values}


def _logprob(value: Any) -> float:
    """Return one kept log probability; raises ValueError when it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("no number")
    return round(float(value), KEPT_DECIMALS)


def _same(told: Sequence[Any], ids: Sequence[int]) -> bool:
    """Whether the ids that a server names are those meant; it may leave one unnamed (0 or null)."""
    return len(told) == len(ids) and all(a == b or not a for a, b in zip(told, ids, strict=True))
