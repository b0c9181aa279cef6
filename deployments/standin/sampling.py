"""Logits of all rows to one id per row. Every operation is element by element or along one row."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from deployments.standin.noise import gumbel
from deployments.standin.weights import Float

FAINTEST = float(
    np.log(2.0**-24)
)  # below the step of a float32 uniform number beside the best id: never drawn
HEAD = 64  # ids looked at first
GREEDY_BELOW = 1e-6  # SGLang takes a lower temperature as greedy


@dataclass(frozen=True, slots=True)
class Choice:
    """How one row picks its next id (names and ranges as in SGLang's sampling_params)."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_new_tokens: int = 0
    seed: int = 0
    banned_early: tuple[int, ...] = field(default=())  # ids not allowed before min_new_tokens

    @property
    def greedy(self) -> bool:
        """Whether the best id is always taken."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1


@dataclass(frozen=True, slots=True)
class Row:
    """One row to sample: where its logits lie, its choice, and the ids so far."""

    index: int
    choice: Choice
    prompt: Sequence[int]
    output: Sequence[int]


def adjust(logits: Float, row: Row) -> None:
    """Apply bias, penalties and the ban on early ends to one row of logits, in place."""
    choice, line = row.choice, logits[row.index]
    if choice.repetition_penalty != 1.0:
        seen = np.unique(np.array(row.output, np.intp))  # the prompt's ids do not count, as genuine
        scale = np.float32(choice.repetition_penalty)
        line[seen] = np.where(line[seen] > 0, line[seen] / scale, line[seen] * scale)
    if (choice.frequency_penalty or choice.presence_penalty) and row.output:
        seen, counts = np.unique(np.array(row.output, np.intp), return_counts=True)
        line[seen] -= (choice.frequency_penalty * counts + choice.presence_penalty).astype(np.float32)
    if len(row.output) < choice.min_new_tokens:
        line[list(choice.banned_early)] = -np.inf
    for token, bias in choice.logit_bias:
        line[token] += np.float32(bias)


def sample(logits: Float, rows: Sequence[Row]) -> npt.NDArray[np.intp]:
    """The next id of each row; logits float32[any, vocabulary] are changed in place."""
    for row in rows:
        adjust(logits, row)
    picked = np.zeros(len(rows), np.intp)
    indices = np.array([row.index for row in rows], np.intp)
    greedy = np.array([row.choice.greedy for row in rows], np.bool_)
    if greedy.any():
        picked[greedy] = logits[indices[greedy]].argmax(axis=1)
    if not greedy.all():
        drawn = [row for row in rows if not row.choice.greedy]
        picked[~greedy] = _draw(logits[indices[~greedy]], drawn)
    return picked


def _draw(logits: Float, rows: Sequence[Row]) -> npt.NDArray[np.intp]:
    """Gumbel-max over what top-k, top-p and min-p leave."""
    temperature = np.array([row.choice.temperature for row in rows], np.float32)[:, None]
    scaled = logits / temperature
    scaled -= scaled.max(axis=1, keepdims=True)
    kept = scaled > FAINTEST
    _restrict(scaled, kept, rows)
    line, column = np.nonzero(kept)
    seeds = np.array([row.choice.seed & (2**64 - 1) for row in rows], np.uint64)
    positions = np.array([len(row.prompt) + len(row.output) for row in rows], np.uint64)
    scores = np.full(scaled.shape, -np.inf)
    scores[line, column] = scaled[line, column] + gumbel(
        seeds[line], positions[line], column.astype(np.uint64)
    )
    best: npt.NDArray[np.intp] = scores.argmax(axis=1)
    return best


def _restrict(scaled: Float, kept: npt.NDArray[np.bool_], rows: Sequence[Row]) -> None:
    """Clear `kept` outside top-k, top-p (of what top-k leaves) and min-p; scaled has its maximum at 0."""
    top_k = np.array([row.choice.top_k for row in rows], np.intp)
    top_p = np.array([row.choice.top_p for row in rows], np.float64)
    mass = np.exp(scaled).sum(axis=1, dtype=np.float64)
    for width in (HEAD, scaled.shape[1]):  # few ids hold nearly all the mass: look at the best first
        narrow = np.flatnonzero((top_k > 0) | (top_p < 1.0))
        if not len(narrow):
            break
        floor, settled = _floors(scaled[narrow], top_k[narrow], top_p[narrow], mass[narrow], width)
        kept[narrow[settled]] &= scaled[narrow[settled]] >= floor[settled, None]
        top_k[narrow[settled]], top_p[narrow[settled]] = -1, 1.0
    min_p = np.array([row.choice.min_p for row in rows], np.float32)
    if min_p.any():
        with np.errstate(divide="ignore"):
            kept &= scaled >= np.log(min_p)[:, None]


def _floors(
    scaled: Float,
    top_k: npt.NDArray[np.intp],
    top_p: npt.NDArray[np.float64],
    mass: npt.NDArray[np.float64],
    width: int,
) -> tuple[Float, npt.NDArray[np.bool_]]:
    """(lowest value kept by top-k and top-p in each row, whether the `width` best ids suffice to tell)."""
    width = min(width, scaled.shape[1])
    ordered = np.sort(np.partition(scaled, -width, axis=1)[:, -width:], axis=1)[:, ::-1]
    running = np.cumsum(np.exp(ordered), axis=1, dtype=np.float64)
    limit = np.where(top_k > 0, top_k, scaled.shape[1])
    last = np.minimum(limit, width) - 1
    total = np.where(top_k > 0, running[np.arange(len(last)), last], mass)
    inside = (
        running - np.exp(ordered) <= (top_p * total)[:, None]
    )  # mass ahead of an id; the first always stays
    inside &= np.arange(width) < limit[:, None]
    floor: Float = np.where(inside, ordered, np.inf).min(axis=1).astype(np.float32)
    settled = (width == scaled.shape[1]) | ((top_k > 0) & (top_k <= width)) | ((top_k <= 0) & ~inside[:, -1])
    return floor, settled
