"""Masks: what the model made, switched off by kind, moved to where a trainer's shift looks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tasks.errors import DataError
from tasks.export.example import Example
from tasks.export.lengths import LengthCost, cut
from tasks.export.masks import BOUNDARIES, SWITCHES, at_boundary, loss_mask, prefilled_opener
from tasks.export.options import ExportOptions
from tasks.rows.records import Segment, as_ids
from tests.support.stores import ASSISTANT, CLOSE, END, THINK, TOOL, TOOL_END, Row, answer, loop, prompt_of

TAILS = [{"ids": [ASSISTANT, THINK], "mode": "open"}, {"ids": [ASSISTANT], "mode": "closed"}]


def example(row: Row) -> Example:
    """Return a row as it comes out of a shard."""
    return Example((row.row_id,), as_ids(row.ids), row.segments, row.code, row.turn, row.sample, "{}")


PLAIN = example(Row("a", prompt_of(10, 11), answer((20, 21), (30,))))
"""1 10 11 2 900 | 20 21 901 30 902"""

OWN_OPENER = example(
    Row(
        "b",
        (1, 10, 2),
        (
            ("opener", (THINK,)),
            ("reasoning", (20,)),
            ("closer", (CLOSE,)),
            ("content", (30,)),
            ("tool_calls", (TOOL, 40, TOOL_END)),
            ("unknown", (50,)),
            ("end", (END,)),
        ),
    )
)
"""1 10 2 | 900 20 901 30 903 40 904 50 902"""


def shown(mask: np.ndarray) -> str:
    """Return a mask as a string of 0 and 1."""
    return "".join("01"[int(value)] for value in mask)


@pytest.mark.parametrize(
    ("row", "off", "expected"),
    [
        pytest.param(PLAIN, (), "0000011111", id="all-of-the-output"),
        pytest.param(PLAIN, ("think",), "0000011011", id="no-closer"),
        pytest.param(PLAIN, ("end",), "0000011110", id="no-end"),
        pytest.param(PLAIN, ("reasoning",), "0000000111", id="no-reasoning"),
        pytest.param(PLAIN, ("content",), "0000011101", id="no-content"),
        pytest.param(OWN_OPENER, (), "000111111111", id="own-opener"),
        pytest.param(OWN_OPENER, ("think",), "000010111111", id="no-opener-no-closer"),
        pytest.param(OWN_OPENER, ("opener",), "000011111111", id="no-opener"),
        pytest.param(OWN_OPENER, ("closer",), "000110111111", id="closer-alone"),
        pytest.param(OWN_OPENER, ("tool_calls",), "000111100011", id="no-tool-calls"),
        pytest.param(OWN_OPENER, ("unknown",), "000111111101", id="no-unknown"),
        pytest.param(OWN_OPENER, ("reasoning", "end"), "000101111110", id="two-switches"),
        pytest.param(PLAIN, tuple(SWITCHES), "0000000000", id="everything-off"),
    ],
)
def test_switches(row: Example, off: tuple[str, ...], expected: str) -> None:
    """Each switch takes exactly its kind of ids away."""
    assert shown(loss_mask(row, off)) == expected


@pytest.mark.parametrize(
    ("prompt", "opener", "count"),
    [
        pytest.param(prompt_of(10), (THINK,), 1, id="prefilled"),
        pytest.param((1, 10, ASSISTANT), (THINK,), 0, id="reasoning-off"),
        pytest.param((1, 10), (THINK,), 0, id="another-tail"),
        pytest.param(prompt_of(10), (), 0, id="no-reasoning-in-this-format"),
    ],
)
def test_a_prefilled_opener_is_found_by_the_tail(
    prompt: tuple[int, ...], opener: tuple[int, ...], count: int
) -> None:
    """Only the job's own tail with reasoning open holds ids that may be learnt."""
    assert prefilled_opener(as_ids(prompt), TAILS, opener) == count


def test_a_newline_behind_the_opener_belongs_to_it() -> None:
    """`<think>\\n` of Qwen: both ids are the prefill."""
    tails = [{"ids": [7, 8, THINK, 198], "mode": "open"}]
    assert prefilled_opener(as_ids([1, 7, 8, THINK, 198]), tails, (THINK,)) == 2


def test_the_prefilled_opener_can_be_learnt() -> None:
    """With the switch the mask begins one id earlier: what SpecForge's own text path and ModelOpt do."""
    assert shown(loss_mask(PLAIN, (), prefilled=1)) == "0000111111"


@pytest.mark.parametrize(
    ("boundary", "expected"),
    [
        pytest.param("raw", "0000011111", id="raw"),
        # reads id i+1, learns id i+2: the first pair is (20, 21), the last (30, 902)
        pytest.param("specforge-0.2.0-eagle3", "0000111100", id="specforge"),
        # reads id i, learns id i+1
        pytest.param("speculators-0.9.0-eagle3", "0000011110", id="speculators"),
    ],
)
def test_boundaries(boundary: str, expected: str) -> None:
    """Position for position where the trainer's version looks."""
    assert shown(at_boundary(boundary, loss_mask(PLAIN), PLAIN.made)) == expected


SHIFTS = {"specforge-0.2.0-eagle3": (1, 2), "speculators-0.9.0-eagle3": (0, 1)}


@given(
    made=st.lists(st.booleans(), min_size=3, max_size=40),
    data=st.data(),
    boundary=st.sampled_from(sorted(SHIFTS)),
)
def test_a_boundary_learns_the_same_ids(made: list[bool], data: st.DataObject, boundary: str) -> None:
    """Whatever the gaps, each position left learns an id of the row, and only an answer's first is lost."""
    mine = np.array(made)
    mask = mine & np.array(data.draw(st.lists(st.booleans(), min_size=mine.size, max_size=mine.size)))
    reads, learns = SHIFTS[boundary]
    moved = np.flatnonzero(at_boundary(boundary, mask, mine))
    assert all(position + learns < mine.size for position in moved)
    assert all(mask[position + learns] and mine[position + reads] for position in moved)
    learnt = {int(position) + learns for position in moved}
    expected = {at for at in range(1, mine.size) if mask[at] and mine[at - 1] and at >= learns}
    assert learnt == expected


def test_turns_that_extend_each_other_become_one() -> None:
    """The mask of the whole is that of each turn; what lies between is nobody's."""
    first, second, third = (example(row) for row in loop("x"))
    whole = first.followed_by(second).followed_by(third)
    assert whole.input_ids.tolist() == third.input_ids.tolist()
    assert [whole.segments[0].start, *(s.stop for s in whole.segments)][-1] == third.input_ids.size
    assert all(a.stop == b.start for a, b in zip(whole.segments, whole.segments[1:], strict=False))
    expected = np.zeros(third.input_ids.size, bool)
    for turn in (first, second, third):
        expected[turn.prompt_length : turn.input_ids.size] = True
    assert shown(whole.made) == shown(expected)
    assert whole.row_ids == ("s:x#t0~s0", "s:x#t1~s0", "s:x#t2~s0")


def test_a_flag_that_lies_is_not_believed() -> None:
    """A row that says it extends the turn before, and does not, is bad data."""
    first, second, _ = (example(row) for row in loop("x"))
    ids = second.input_ids.copy()
    ids[3] += 1
    liar = Example(second.row_ids, ids, second.segments, second.verdict, 1, 0, "{}")
    with pytest.raises(DataError, match=r"x#t1~s0: expected a prompt that begins with the 12 ids of s:x#t0"):
        first.followed_by(liar)


@pytest.mark.parametrize(
    ("longest", "policy", "expected"),
    [
        pytest.param(None, "cut", 10, id="no-limit"),
        pytest.param(10, "cut", 10, id="fits"),
        pytest.param(7, "cut", 7, id="cut"),
        pytest.param(7, "drop", None, id="drop"),
        pytest.param(5, "cut", None, id="only-prompt-left"),
    ],
)
def test_longest_length(longest: int | None, policy: str, expected: int | None) -> None:
    """Cut at the end, never split; nothing is kept of which nothing could be learnt."""
    kept = cut(PLAIN.input_ids, loss_mask(PLAIN), longest, policy)  # type: ignore[arg-type]
    assert (kept and kept[0].size) == expected
    if kept is not None:
        assert kept[0].tolist() == PLAIN.input_ids[: kept[0].size].tolist()
        assert kept[0].size == kept[1].size


def test_what_a_length_costs() -> None:
    """Rows and supervised ids lost, by cutting and by dropping."""
    cost = LengthCost(7)
    for row in (PLAIN, OWN_OPENER, example(Row("c", tuple(range(1, 9)), answer((20,), (30,))))):
        cost.add(loss_mask(row))
    assert (cost.rows_longer, cost.rows_without) == (3, 1)
    assert (cost.lost_by_cut, cost.lost_by_drop) == (3 + 5 + 4, 5 + 9 + 4)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param({"include": ("nan",)}, "'nan': its ids cannot be proved", id="integrity"),
        pytest.param({"include": ("repetitions",)}, "expected one of", id="no-code"),
        pytest.param({"mask": ("prompt",)}, "mask: expected one of", id="no-switch"),
        pytest.param({"boundary": "specforge"}, ", ".join(BOUNDARIES), id="no-version"),
        pytest.param({"max_length": 1}, "greater than or equal to 2", id="no-length"),
        pytest.param({"lenght": 1}, "Extra inputs", id="unknown"),
    ],
)
def test_odd_options_are_refused(fields: dict[str, object], message: str) -> None:
    """The field, what was expected, what came."""
    with pytest.raises(ValidationError) as error:
        ExportOptions(**fields)
    assert message in str(error.value)


def test_segments_without_a_prompt() -> None:
    """A row without a prompt has none to mask."""
    row = Example(("s:a#t0~s0",), as_ids([5, 6]), (Segment("content", 0, 2),), "complete", 0, 0, "{}")
    assert row.prompt_length == 0
    assert shown(loss_mask(row)) == "11"
