"""What re-scoring decides, on distributions that are known in full."""

from typing import Any

import numpy as np
import pytest

from tasks.audit.likelihood import TOLERANCE, TOP, at_temperature, not_drawable, off_kept, outlying, surprise

SIZE = 500


def distributions(seed: int, rows: int, peak: float = 3.0) -> np.ndarray[Any, np.dtype[np.float64]]:
    """float64[rows, SIZE]: log probabilities, made up, some of them nearly certain."""
    noise = np.random.default_rng(seed)
    logits = noise.normal(0.0, peak, (rows, SIZE))
    logits[::3, 7] += 25.0
    return np.asarray(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))


def told(
    lines: np.ndarray[Any, np.dtype[np.float64]], ids: np.ndarray[Any, np.dtype[np.intp]]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return what a server tells of ids: their log probabilities, and the best ones."""
    return lines[np.arange(len(ids)), ids], -np.sort(-lines, axis=1)[:, :TOP]


def tempered(
    lines: np.ndarray[Any, np.dtype[np.float64]], temperature: float
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the log probabilities at a temperature."""
    scaled = lines / temperature
    return np.asarray(scaled - np.logaddexp.reduce(scaled, axis=1, keepdims=True))


def draw(
    lines: np.ndarray[Any, np.dtype[np.float64]], sampling: dict[str, float], seed: int
) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Draw an id per row as SGLang does: temperature, then top_k, top_p and min_p over the sorted ids."""
    noise = np.random.default_rng(seed)
    if sampling["temperature"] == 0:
        return np.asarray(lines.argmax(axis=1))
    chances = np.exp(tempered(lines, sampling["temperature"]))
    order = np.argsort(-chances, axis=1)
    ranked = np.take_along_axis(chances, order, axis=1)
    before = np.cumsum(ranked, axis=1) - ranked
    keep = (before <= sampling.get("top_p", 1.0)) & (ranked >= sampling.get("min_p", 0.0) * ranked[:, :1])
    keep &= np.arange(SIZE) < (sampling.get("top_k", SIZE))
    ranked = np.where(keep, ranked, 0.0)
    picked = [noise.choice(order[i], p=row / row.sum()) for i, row in enumerate(ranked)]
    return np.array(picked, np.intp)


@pytest.mark.parametrize("temperature", [0.3, 0.6, 1.0, 1.4, 3.0])
@pytest.mark.parametrize("peak", [0.5, 3.0, 12.0], ids=["flat", "usual", "peaked"])
def test_bounds_hold_the_truth(temperature: float, peak: float) -> None:
    """Twenty best ids and the vocabulary's size bound every log probability at every temperature."""
    lines = distributions(1, 200, peak)
    ids = np.random.default_rng(2).integers(0, SIZE, 200)
    low, high = at_temperature(*told(lines, ids), temperature, SIZE)
    truth = tempered(lines, temperature)[np.arange(200), ids]
    assert (low - 1e-9 <= truth).all()
    assert (truth <= high + 1e-9).all()
    assert (low <= high).all()


SAMPLINGS: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "plain": {"temperature": 1.0},
    "hot": {"temperature": 1.5},
    "nucleus": {"temperature": 0.7, "top_p": 0.95},
    "few best": {"temperature": 0.8, "top_k": 5},
    "least share": {"temperature": 1.0, "min_p": 0.1},
    "all of them": {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.02},
}


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_what_was_drawn_can_be_drawn(sampling: dict[str, float]) -> None:
    """Of 2,000 drawn ids none is called impossible and no row is out of line, though scores have noise."""
    lines = distributions(3, 2000)
    ids = draw(lines, sampling, 4)
    noise = np.random.default_rng(5).uniform(-TOLERANCE / 3, TOLERANCE / 3, lines.shape)
    seen = lines + noise
    seen -= np.logaddexp.reduce(seen, axis=1, keepdims=True)
    values, best = told(seen, ids)
    assert not_drawable(values, best, sampling, SIZE, 2000, TOLERANCE) == ""
    rows = [
        surprise(values[i : i + 50], best[i : i + 50], sampling["temperature"], SIZE)
        for i in range(0, 2000, 50)
    ]
    assert outlying(rows) == {}


@pytest.mark.parametrize("name", ["greedy", "nucleus", "few best", "least share", "all of them"])
def test_one_impossible_id_is_found(name: str) -> None:
    """An id from the middle of the vocabulary's order: its place is named."""
    lines, sampling = distributions(6, 40), SAMPLINGS[name]
    ids = draw(lines, sampling, 7)
    ids[18] = np.argsort(-lines[18])[100]  # every third place has one id that is nearly certain
    wrong = not_drawable(*told(lines, ids), sampling, SIZE, 4000, TOLERANCE)
    assert wrong.startswith("1 of 40 that it cannot, worst output id 18: ")


def test_a_penalty_cannot_be_undone() -> None:
    """Rows drawn with a repetition penalty are not held to what sampling can draw."""
    values, best = np.array([-30.0]), np.array([[-0.1, -3.0]])
    assert not_drawable(values, best, {"temperature": 0.0}, SIZE, 1, TOLERANCE)
    assert not not_drawable(values, best, {"temperature": 0.0, "repetition_penalty": 1.1}, SIZE, 1, TOLERANCE)


KEPT: dict[str, tuple[dict[int, float], bool]] = {
    "equal": ({}, True),
    "all a little off": (dict.fromkeys(range(200), 0.3), True),
    "two strays of 200": ({3: 0.5, 50: -0.5}, True),
    "three strays of 200": ({3: 0.5, 50: -0.5, 60: 0.5}, False),
    "one far off": ({3: -9.0}, False),
}


@pytest.mark.parametrize(("changes", "equal"), KEPT.values(), ids=KEPT)
def test_kept_log_probabilities(changes: dict[int, float], equal: bool) -> None:
    """One id in a hundred may stray from the tolerance, none by ten times as much."""
    values = np.full(200, -1.0)
    kept = values.copy()
    for place, change in changes.items():
        kept[place] += change
    assert (off_kept(kept, values, (values, values), TOLERANCE) == "") == equal


def test_kept_ones_are_compared_at_their_temperature_or_raw() -> None:
    """Told after temperature (as SGLang does) or before it (by environment): equal; others are not."""
    lines = distributions(8, 100)
    ids = draw(lines, {"temperature": 0.6}, 9)
    values, best = told(lines, ids)
    bounds = at_temperature(values, best, 0.6, SIZE)
    after = tempered(lines, 0.6)[np.arange(100), ids]
    assert off_kept(after, values, bounds, 0.001) == ""
    assert off_kept(values, values, bounds, 0.001) == ""
    assert off_kept(after[::-1], values, bounds, 0.001)
    assert off_kept(after[:-1], values, bounds, 0.001) == "99 kept for 100 output ids"


def test_a_row_out_of_line_and_a_whole_sample() -> None:
    """One row whose ids are another model's is named; when all are, the sample is; few rows say nothing."""
    lines = distributions(10, 1000)
    own, foreign = (
        draw(lines, {"temperature": 1.0}, 11),
        draw(distributions(12, 1000), {"temperature": 1.0}, 13),
    )

    def rows(ids: np.ndarray[Any, np.dtype[np.intp]]) -> list[tuple[float, float]]:
        values, best = told(lines, ids)
        return [surprise(values[i : i + 50], best[i : i + 50], 1.0, SIZE) for i in range(0, 1000, 50)]

    mixed = own.copy()
    mixed[250:300] = foreign[250:300]
    assert list(outlying(rows(mixed))) == [5]
    assert list(outlying(rows(foreign))) == [-1]
    assert outlying(rows(foreign)[:7]) == {}
