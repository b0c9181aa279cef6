"""Numbers of a report, from what was counted (pure)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import attrs
import numpy as np
from numpy.typing import NDArray

from tasks.report.measured import ANSWER, ANSWER_FLOOR

QUANTILES: Final = (0.5, 0.9, 0.99)

COVERED: Final = (0.9, 0.95, 0.99, 0.999)
"""Shares of the supervised ids for which the page says how large a draft vocabulary must be."""

TIME_BINS: Final = 60


@attrs.frozen(slots=True)
class Pace:
    """What one server did: `busy_seconds` is the union of its rows' time, so that pauses do not count."""

    server: str
    versions: tuple[str, ...]
    rows: int
    tokens: int
    busy_seconds: float
    row_pace: float

    @property
    def tokens_per_second(self) -> float:
        """Output ids per busy second."""
        return self.tokens / self.busy_seconds if self.busy_seconds else 0.0


def quantiles(lengths: Counter[int]) -> tuple[int, ...]:
    """Return the `QUANTILES` and the maximum of counted lengths; zeros when there are none."""
    if not lengths:
        return (0,) * (len(QUANTILES) + 1)
    values = np.array(sorted(lengths))
    upto = np.cumsum([lengths[int(value)] for value in values])
    places = np.searchsorted(upto, np.array(QUANTILES) * upto[-1])
    return (*(int(values[place]) for place in places), int(values[-1]))


def histogram(lengths: Counter[int], bins: int = 40) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return (edges float[bins+1], rows int[bins]) of lengths from 1 on, on a logarithmic scale."""
    longest = max(lengths, default=1)
    edges = np.geomspace(1, max(longest, 2) + 1, bins + 1)
    values = np.array([value for value in lengths if value > 0], np.float64)
    weights = np.array([count for value, count in lengths.items() if value > 0], np.int64)
    rows, _ = np.histogram(values, edges, weights=weights)
    return edges, rows.astype(np.int64)


def answer_share(supervised: Mapping[str, int]) -> float | None:
    """Return the share of `</think>`, content and tool ids among supervised ids; None without any."""
    total = sum(supervised.values())
    return sum(supervised.get(kind, 0) for kind in ANSWER) / total if total else None


def answer_warning(supervised: Mapping[str, int]) -> str:
    """Return a sentence when too few supervised ids are `</think>`, content or tool ids; "" otherwise."""
    share = answer_share(supervised)
    if share is None or share >= ANSWER_FLOOR:
        return ""
    return (
        f"only {share:.1%} of the supervised ids are </think>, content or tool ids (below "
        f"{ANSWER_FLOOR:.0%}): a drafter trained on this sees little of what follows the reasoning."
    )


def coverage(frequencies: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return float[k]: the share of all occurrences that the 1, 2, … k most frequent ids cover."""
    counts = np.sort(frequencies[frequencies > 0])[::-1]
    return np.cumsum(counts) / counts.sum() if counts.size else np.zeros(0)


def ids_to_cover(curve: NDArray[np.float64]) -> list[tuple[float, int]]:
    """Return for each share of `COVERED` how many ids cover it."""
    return [(share, int(np.searchsorted(curve, share - 1e-12)) + 1) for share in COVERED if curve.size]


def busy_seconds(timed: Sequence[tuple[float, float, int]]) -> float:
    """Return the length of the union of [finished - seconds, finished) over rows."""
    total, until = 0.0, -np.inf
    for start, stop in sorted((finished - seconds, finished) for finished, seconds, _ in timed):
        total += max(0.0, stop - max(start, until))
        until = max(until, stop)
    return float(total)


def paces(
    timed: Mapping[str, Sequence[tuple[float, float, int]]], versions: Mapping[str, set[str]]
) -> list[Pace]:
    """Return what each server did, by address."""
    found = []
    for server, rows in sorted(timed.items()):
        own = [made / seconds for _, seconds, made in rows if seconds > 0]
        tokens = sum(made for _, _, made in rows)
        pace = float(np.median(own)) if own else 0.0
        seen = tuple(sorted(versions.get(server, ())))
        found.append(Pace(server, seen, len(rows), tokens, busy_seconds(rows), pace))
    return found


def over_time(
    timed: Mapping[str, Sequence[tuple[float, float, int]]],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return (edges float[bins+1] in seconds since the epoch, output ids int[bins]) of all rows."""
    rows = [(finished, made) for server in timed.values() for finished, _, made in server if finished > 0]
    if not rows:
        return np.zeros(0), np.zeros(0, np.int64)
    at, made = np.array(rows, np.float64).T
    edges = np.linspace(at.min(), max(at.max(), at.min() + 1.0), TIME_BINS + 1)
    tokens, _ = np.histogram(at, edges, weights=made)
    return edges, tokens.astype(np.int64)
