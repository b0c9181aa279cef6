"""Could these ids have come from that model? Statistics over re-scored rows (pure).

Nats are natural logarithms of probabilities. Re-scoring tells raw ones: of temperature 1, without penalties,
nothing cut off. A row was drawn at its own temperature, from what top_p, top_k and min_p leave. So there are
three questions, each with its own answer:

- `off_kept`: are the log probabilities those that were kept at generation? The only exact one.
- `not_drawable`: is there an id that the row's sampling cannot have drawn at its place?
- `outlying`: is the row as a whole less likely than the model leads to expect, unlike the other rows?

A repetition penalty cannot be undone: rows drawn with one answer the last question only.

Two kernels never agree to the last bit: decoding one id and prefilling many, other batch sizes, other GPUs.
`TOLERANCE` is what SGLang's own test allows between the two on one GPU in half precision
(`test_srt_endpoint.py`, `test_logprob_match`: 0.35). In float32 on a CPU SGLang 0.5.23 and the embedded
server agree within 0.001, whichever generates and whichever scores.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

TOLERANCE: Final = 0.35
"""Nats by which a log probability may differ between generation and re-scoring."""

STRAYS: Final = 0.01
"""Share of a row's ids that may differ by more: rounding has a long tail, and may turn an expert's choice."""

FAR: Final = 10.0
"""Tolerances by which no id may differ: 3.5 nats are a factor of 33, which no rounding makes."""

FALSE_ALARMS: Final = 0.01
"""Expected number of ids in a clean sample that are called too unlikely to have been drawn."""

TOP: Final = 20
"""Most likely ids told at each place: what temperatures and nuclei are reckoned from."""

OUTLYING: Final = 8.0
"""Robust standard deviations below the median at which a row is out of line. What deviates is already
measured in standard deviations, but its tail is longer than a normal one: the lowest of 768 clean rows of the
embedded model (temperatures 0 to 1.3) lay at -4, rows with another prompt's answer at -10 and far below."""

FOREIGN: Final = 0.5
"""Nats an id, as the median over rows, by which a sample is less likely than the model leads to expect: that
much is another model (or all rows are wrong), where another precision or quantisation costs hundredths."""

ROUNDING: Final = 1e-6
"""Of a sum of probabilities that a server reckons in float32."""

LEAST_ROWS: Final = 8
"""Fewer rows have no median to speak of."""


def at_temperature(values: Floats, best: Floats, temperature: float, size: int) -> tuple[Floats, Floats]:
    """Return bounds of log probabilities at a temperature, from raw ones.

    With p raw, the tempered one is p^(1/T) / Z, where Z is the sum of p^(1/T) over the vocabulary: known for
    the best ids; for the others bounded by their total mass and their number (power means).

    Args:
        values: float64[n]: raw log probabilities of the ids.
        best: float64[n, k]: those of the best ids at each place, best first.
        temperature: 0 is greedy, told as raw by SGLang.
        size: of the vocabulary.

    Returns:
        float64[n] lower and upper bound.
    """
    if temperature in (0.0, 1.0):
        return values, values
    power = 1.0 / temperature
    unlisted = values < best[:, -1]
    known = np.exp(power * best).sum(axis=1) + unlisted * np.exp(power * values)
    mass = 1.0 - np.exp(best).sum(axis=1) - unlisted * np.exp(values)
    count = max(1, size - best.shape[1])
    # none of the others is likelier than the last of the best
    over = np.clip(np.minimum(mass + ROUNDING, count * np.exp(best[:, -1])), 0.0, 1.0)
    under = np.minimum(np.clip(mass - ROUNDING, 0.0, 1.0), over)

    def spread(mass: Floats) -> Floats:
        return np.asarray(count ** (1.0 - power) * mass**power)

    def peaked(mass: Floats) -> Floats:
        return np.asarray(np.exp((power - 1.0) * best[:, -1]) * mass)

    least, most = (spread(under), peaked(over)) if power > 1.0 else (peaked(under), spread(over))
    return power * values - np.log(known + most), power * values - np.log(known + least)


def off_kept(kept: Floats, values: Floats, bounds: tuple[Floats, Floats], tolerance: float) -> str:
    """Return how a row differs from the log probabilities kept at generation, "" when it does not.

    Compared with the tempered ones, or with the raw ones where these fit better: a server with
    SGLANG_RETURN_ORIGINAL_LOGPROB tells raw ones at generation too.

    Args:
        kept: float64[n].
        values: float64[n]: raw ones now.
        bounds: of the tempered ones now.
        tolerance: nats.
    """
    if kept.size != values.size:
        return f"{kept.size} kept for {values.size} output ids"
    low, high = bounds
    tempered = np.maximum(np.maximum(low - kept, kept - high), 0.0)
    raw = np.abs(kept - values)
    off = tempered if np.median(tempered) <= np.median(raw) else raw
    strays, worst = int((off > tolerance).sum()), int(off.argmax())
    if strays <= STRAYS * off.size and off[worst] <= FAR * tolerance:
        return ""
    return (
        f"{strays} of {off.size} further off, most at output id {worst}: "
        f"kept {kept[worst]:.2f}, now {values[worst]:.2f} (raw)"
    )


def not_drawable(
    values: Floats, best: Floats, sampling: Mapping[str, Any], size: int, total: int, tolerance: float
) -> str:
    """Return which ids the row's sampling cannot have drawn, "" when it can have drawn all.

    An id is better than another only if it is so by more than the tolerance. Greedy decoding draws the best;
    top_k one of the k best; top_p one whose better ones together have less than top_p; min_p one that is not
    that much worse than the best. And no id is drawn whose chance is so small that of all ids in the sample,
    over all of the vocabulary, only `FALSE_ALARMS` such draws are expected.

    Args:
        values: float64[n]: raw log probabilities of the output ids.
        best: float64[n, k].
        sampling: of this row: temperature, top_p, top_k, min_p, repetition_penalty.
        size: of the vocabulary.
        total: output ids in the whole sample.
        tolerance: nats.
    """
    if sampling.get("repetition_penalty", 1.0) != 1.0:
        return ""
    temperature = float(sampling.get("temperature", 1.0))
    behind = best[:, 0] - values
    if temperature == 0.0:
        bad = behind > tolerance
    else:
        bad = _outside(values, best, sampling, size, tolerance)
        chance = np.log(FALSE_ALARMS / (size * max(1, total)))
        bad |= at_temperature(values, best, temperature, size)[1] < chance - tolerance / temperature
    if not bad.any():
        return ""
    places = np.flatnonzero(bad)
    worst = int(places[behind[places].argmax()])
    return (
        f"{places.size} of {values.size} that it cannot, worst output id {worst}: "
        f"{values[worst]:.2f} nats (raw) where the best has {best[worst, 0]:.2f}"
    )


def _outside(
    values: Floats, best: Floats, sampling: Mapping[str, Any], size: int, tolerance: float
) -> NDArray[np.bool_]:
    """Which ids lie outside what top_k, top_p and min_p leave."""
    temperature = float(sampling.get("temperature", 1.0))
    better = best > values[:, None] + tolerance
    bad = np.zeros(values.size, np.bool_)
    if 0 < (top_k := int(sampling.get("top_k", -1))) <= best.shape[1]:
        bad |= better.sum(axis=1) >= top_k
    if (top_p := float(sampling.get("top_p", 1.0))) < 1.0:
        low = np.stack([at_temperature(column, best, temperature, size)[0] for column in best.T], axis=1)
        above = np.clip((np.exp(low) * better).sum(axis=1), 1e-12, 1 - 1e-12)
        # a tolerance of logits is one of log odds
        bad |= np.log(above / (1 - above)) > np.log(top_p / (1 - top_p)) + 2 * tolerance / temperature
    if (min_p := float(sampling.get("min_p", 0.0))) > 0.0:
        bad |= best[:, 0] - values > -temperature * np.log(min_p) + tolerance
    return bad


def surprise(values: Floats, best: Floats, temperature: float, size: int) -> tuple[float, float]:
    """Return how much likelier a row is than its model leads to expect: in standard deviations, nats an id.

    At each place the tempered distribution tells mean (the negative entropy) and variance of the log
    probability of an id drawn from it; a row is compared with the sum over its places, so that hard prompts
    and long rows are no outliers. One nat squared is added: rows that are certain throughout vary by nothing.

    Args:
        values: float64[n]: raw log probabilities of the output ids.
        best: float64[n, k].
        temperature: at which they were drawn; 0 counts as 1, and makes them likelier than expected.
        size: of the vocabulary.
    """
    heat = temperature or 1.0
    now = np.mean(at_temperature(values, best, heat, size), axis=0)
    logs = np.stack([np.mean(at_temperature(column, best, heat, size), axis=0) for column in best.T], axis=1)
    shares = np.exp(logs)
    rest = np.clip(1.0 - shares.sum(axis=1), 1e-12, 1.0)
    log_rest = np.log(rest / max(1, size - best.shape[1]))
    mean = (shares * logs).sum(axis=1) + rest * log_rest
    variance = np.maximum((shares * logs**2).sum(axis=1) + rest * log_rest**2 - mean**2, 0.0)
    more = now - mean
    return float(more.sum() / np.sqrt(variance.sum() + 1.0)), float(more.mean())


def outlying(surprises: Sequence[tuple[float, float]]) -> dict[int, str]:
    """Return the rows that are out of line, each with what is wrong; -1 stands for the whole sample.

    Robust: the median and the median absolute deviation (times 1.4826, which makes it the standard deviation
    of a normal sample) are not moved by the rows that are looked for. Their mean log probability alone would
    tell hard prompts from easy ones rather than wrong ids from right ones.

    Args:
        surprises: per row what `surprise` says.
    """
    if len(surprises) < LEAST_ROWS:
        return {}
    deviations, nats = np.array(surprises, np.float64).T
    if (median := float(np.median(nats))) < -FOREIGN:
        return {
            -1: f"{-median:.2f} nats an id less likely (median): another model made them, or all are wrong"
        }
    middle = float(np.median(deviations))
    spread = max(1.0, 1.4826 * float(np.median(np.abs(deviations - middle))))
    return {
        int(
            row
        ): f"{(middle - deviations[row]) / spread:.0f} standard deviations less, {nats[row]:.2f} nats an id"
        for row in np.flatnonzero(middle - deviations > OUTLYING * spread)
    }
