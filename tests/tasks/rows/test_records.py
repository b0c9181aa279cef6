"""Records are checked where they are built."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.rows.records import CheckedBatch, Completion, Ragged, Request, Verdict, as_ids

EMPTY = np.zeros(0, np.int32)


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=20), max_size=20))
def test_ragged_keeps_every_row(rows: list[list[int]]) -> None:
    """What goes in as rows comes out as rows, in order, and `take` picks them."""
    ragged = Ragged.from_rows([as_ids(row) for row in rows])
    assert [ragged.row(i).tolist() for i in range(len(ragged))] == rows
    assert ragged.lengths.tolist() == [len(row) for row in rows]
    backwards = list(reversed(range(len(rows))))
    assert [row.tolist() for row in map(ragged.take(backwards).row, range(len(rows)))] == rows[::-1]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        pytest.param([1, -1], "got -1", id="negative"),
        pytest.param([2**31], "got 2147483648", id="beyond-int32"),
        pytest.param([1.5], "flat list of integers", id="float"),
        pytest.param([[1], [2]], "flat list of integers", id="nested"),
        pytest.param([True], "flat list of integers", id="bool"),
    ],
)
def test_ids_that_int32_cannot_hold_are_refused(values: list[object], message: str) -> None:
    """Nothing is wrapped, cut or guessed on the way into int32."""
    with pytest.raises(ValueError, match=message):
        as_ids(values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ids", "offsets", "message"),
    [
        pytest.param([1, 2], [0, 1], "from 0 to 2", id="short"),
        pytest.param([1, 2], [1, 2], "from 0 to 2", id="late-start"),
        pytest.param([1, 2], [0, 2, 1, 2], "step back", id="falling"),
    ],
)
def test_offsets_must_tile(ids: list[int], offsets: list[int], message: str) -> None:
    """Offsets start at 0, end at n and never fall."""
    with pytest.raises(ValueError, match=message):
        Ragged(np.array(ids, np.int32), np.array(offsets, np.int64))


@pytest.mark.parametrize(
    ("ids", "cap", "message"),
    [
        pytest.param(EMPTY, 5, "int32", id="empty-prompt"),
        pytest.param(np.array([1], np.int64), 5, "int32", id="int64"),
        pytest.param(np.array([1], np.int32), 0, "max_new_tokens", id="no-room"),
    ],
)
def test_a_request_that_kills_a_server_cannot_be_built(ids: np.ndarray, cap: int, message: str) -> None:
    """An empty prompt kills SGLang 0.5.23: it is refused with the row's name."""
    with pytest.raises(ValueError, match=message) as caught:
        Request("p:a#t0~s0", ids, cap, seed=0)
    assert "p:a#t0~s0" in str(caught.value)


def test_a_code_belongs_to_an_unsent_row() -> None:
    """A served row has no code of its own, an unsent one must have one."""
    with pytest.raises(ValueError, match="a code belongs to an unsent row"):
        Completion("r", EMPTY, EMPTY, "stop", code="bad_record")
    with pytest.raises(ValueError, match="a code belongs to an unsent row"):
        Completion("r", EMPTY, EMPTY, "unsent")


def _batch(row_ids: tuple[str, ...], verdicts: int) -> CheckedBatch:
    rows = len(row_ids)
    empty = Ragged.from_rows([EMPTY] * rows)
    return CheckedBatch(
        batch=3,
        row_ids=row_ids,
        inputs=empty,
        outputs=empty,
        verdicts=(Verdict("no_output", 0, ()),) * verdicts,
        accepted=np.zeros(rows, np.bool_),
        completions=tuple(Completion(name, EMPTY, EMPTY, "stop") for name in row_ids),
        turns=np.zeros(rows, np.int16),
        samples=np.zeros(rows, np.int16),
        metadata=("{}",) * rows,
    )


@pytest.mark.parametrize(
    ("row_ids", "verdicts", "message"),
    [
        pytest.param(("a", "b"), 1, "batch 3: 2 rows but 1 verdicts", id="lost"),
        pytest.param(("a", "a"), 2, "batch 3: row ids repeat", id="doubled"),
    ],
)
def test_a_batch_holds_every_row_once(row_ids: tuple[str, ...], verdicts: int, message: str) -> None:
    """Columns of another length and repeated row ids are refused with the batch's number."""
    with pytest.raises(ValueError, match=message):
        _batch(row_ids, verdicts)
