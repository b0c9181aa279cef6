"""The numbers of a report, on cases that can be counted by hand."""

from collections import Counter

import numpy as np
import pytest

from tasks.report.numbers import (
    answer_warning,
    busy_seconds,
    coverage,
    histogram,
    ids_to_cover,
    over_time,
    quantiles,
)
from tasks.report.retokenized import first_difference, retokenize
from tasks.rows.records import as_ids


@pytest.mark.parametrize(
    ("timed", "seconds"),
    [
        pytest.param([], 0.0, id="none"),
        pytest.param([(10.0, 2.0, 1), (11.0, 2.0, 1)], 3.0, id="overlapping"),
        pytest.param([(10.0, 2.0, 1), (100.0, 5.0, 1)], 7.0, id="a-pause-does-not-count"),
        pytest.param([(10.0, 9.0, 1), (5.0, 1.0, 1)], 9.0, id="one-inside-the-other"),
    ],
)
def test_a_server_is_busy_while_it_has_a_row(timed: list[tuple[float, float, int]], seconds: float) -> None:
    """The union of its rows' time."""
    assert busy_seconds(timed) == pytest.approx(seconds)


def test_lengths() -> None:
    """Quantiles and bins count every row once."""
    lengths = Counter({1: 50, 10: 40, 1000: 10})
    assert quantiles(lengths) == (1, 10, 1000, 1000)
    assert quantiles(Counter()) == (0, 0, 0, 0)
    edges, rows = histogram(lengths)
    assert (rows.sum(), len(edges)) == (100, len(rows) + 1)
    assert histogram(Counter({0: 5}))[1].sum() == 0


def test_coverage_is_of_the_most_frequent_ids() -> None:
    """Absent ids do not count; the curve ends at 1."""
    curve = coverage(np.array([0, 5, 90, 0, 5]))
    assert curve.tolist() == [0.9, 0.95, 1.0]
    assert ids_to_cover(curve) == [(0.9, 1), (0.95, 2), (0.99, 3), (0.999, 3)]


@pytest.mark.parametrize(
    ("supervised", "warned"),
    [
        pytest.param({"reasoning": 80, "content": 20}, False, id="at-the-floor"),
        pytest.param({"reasoning": 81, "content": 10, "closer": 5, "tool_calls": 4}, True, id="below"),
        pytest.param({"reasoning": 80, "end": 20}, True, id="the-end-token-is-no-answer"),
        pytest.param({}, False, id="nothing"),
    ],
)
def test_too_little_answer_is_warned_of(supervised: dict[str, int], warned: bool) -> None:
    """Below 20 % of `</think>`, content and tool ids."""
    assert bool(answer_warning(supervised)) is warned


def test_tokens_over_time_are_all_there() -> None:
    """Every row's ids lie in one bin."""
    edges, tokens = over_time({"a": [(10.0, 1.0, 7), (20.0, 1.0, 5)], "b": [(15.0, 1.0, 3)]})
    assert (edges[0], edges[-1], tokens.sum()) == (10.0, 20.0, 15)
    assert over_time({})[0].size == 0


def test_retokenizing_finds_where_ids_differ() -> None:
    """A vocabulary in which `ab` has an id of its own: two ids that spell it do not come back."""
    texts = {1: "a", 2: "b", 3: "ab"}

    def encode(text: str) -> list[int]:
        return [3] * text.count("ab") + [1] * (text.count("a") - text.count("ab"))

    rows = [("same", as_ids([3])), ("other", as_ids([1, 2])), ("empty", as_ids([]))]
    found = retokenize(rows, lambda ids: "".join(texts[i] for i in ids), encode)
    assert (found.rows, found.changed, found.share) == (3, 1, pytest.approx(1 / 3))
    assert (found.first[0].row_id, found.first[0].at) == ("other", 0)
    assert (found.first[0].before, found.first[0].after) == ((1, 2), (3,))
    assert first_difference([1, 2], [1, 2, 3]) == 2
