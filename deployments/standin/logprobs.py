"""Log probabilities of ids: what a request wants to know, and rows of logits to what it is told.

As genuine (sglang 0.5.23): those of output ids belong to the distribution that was drawn from, so after bias,
penalties and temperature (layers/sampler.py:170; without the temperature if SGLANG_RETURN_ORIGINAL_LOGPROB is
set, or when decoding is greedy), before top-k, top-p and min-p. Those of prompt ids belong to the raw logits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deployments.standin.weights import Float

Alternative = tuple[float, int]  # (natural logarithm, id)
LOWEST = np.finfo(np.float32).min  # told instead of minus infinity (layers/logprob_processor.py:926)


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request wants to know."""

    start: int  # first prompt id that is told of (logprob_start_len); the prompt's length for none
    top: int = 0  # best ids told of at each place (top_logprobs_num)
    texts: bool = False  # whether the text of each id is told (return_text_in_logprobs)
    temperature: float = 1.0  # divides the logits of output ids
    nameless: int | None = None  # prompt id that is told as 0


@dataclass(frozen=True, slots=True)
class Score:
    """One id at its place: natural logarithm, id, and the best ids there, best first."""

    value: float
    token: int
    best: tuple[Alternative, ...] = ()


def log_softmax(logits: Float) -> Float:
    """Natural logarithm of the softmax of each row, float32 as the rows are."""
    lines: Float = logits - logits.max(axis=-1, keepdims=True)
    lines -= np.log(np.exp(lines).sum(axis=-1, keepdims=True))
    return np.maximum(lines, LOWEST, out=lines)


def tell(logits: Float, tokens: Sequence[int], tops: Sequence[int]) -> list[Score]:
    """The score of one id per row of float32[n, vocabulary], with so many best ids each."""
    lines = log_softmax(logits)
    values = lines[np.arange(len(tokens)), np.array(tokens, np.intp)].tolist()
    best = _best(lines, max(tops, default=0))
    return [
        Score(value, int(token), tuple(row[:top]))
        for value, token, row, top in zip(values, tokens, best, tops, strict=True)
    ]


def _best(lines: Float, count: int) -> list[list[Alternative]]:
    """The best ids of each row, best first."""
    if count <= 0:
        return [[] for _ in lines]
    count = min(count, lines.shape[1])
    ids: npt.NDArray[np.intp] = np.argpartition(lines, -count, axis=1)[:, -count:]
    values = np.take_along_axis(lines, ids, axis=1)
    order = np.argsort(-values, axis=1, kind="stable")
    ids, values = np.take_along_axis(ids, order, axis=1), np.take_along_axis(values, order, axis=1)
    return [list(zip(*pair, strict=True)) for pair in zip(values.tolist(), ids.tolist(), strict=True)]
