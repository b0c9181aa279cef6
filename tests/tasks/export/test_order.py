"""Which rows come, how often and where: decisions that hang on ids and a seed alone."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.errors import JobError
from tasks.export.example import Example
from tasks.export.frequencies import Frequencies, draft_mapping
from tasks.export.order import Seen, comes, key_of, split_of, visits
from tasks.rows.records import as_ids
from tests.support.stores import plain


def example(number: int, sample: int = 0, turn: int = 0) -> Example:
    """Return row `number`."""
    row = plain(number, sample=sample, turn=turn)
    return Example((row.row_id,), as_ids(row.ids), row.segments, row.code, turn, sample, "{}")


def test_stores_run_side_by_side() -> None:
    """Every batch once, in its store's order; any prefix has the stores in their proportion."""
    order = list(visits([10, 30], [1.0, 1.0]))
    assert Counter((v.store, v.place) for v in order) == Counter(
        itertools.chain(((0, place) for place in range(10)), ((1, place) for place in range(30)))
    )
    for stop in range(4, 41, 4):
        share = Counter(v.store for v in order[:stop])
        assert share[1] == pytest.approx(3 * share[0], abs=3)
    for store in (0, 1):
        places = [v.place for v in order if v.store == store]
        assert places == sorted(places)


def test_weights_are_rounds() -> None:
    """Weight 2.5 is read in three rounds; copies of a row are as far apart as a round is long."""
    order = list(visits([2, 2], [1.0, 2.5]))
    assert [(v.round, v.store) for v in order] == [(0, 0), (0, 1)] * 2 + [(1, 1)] * 2 + [(2, 1)] * 2


def test_a_fraction_of_the_rows_comes() -> None:
    """About the weight's share, the same ones each time, others for another seed; whole copies always."""
    rows = [example(number) for number in range(800)]
    picked = [comes(0.25, 0, 1, row) for row in rows]
    assert picked == [comes(0.25, 0, 1, row) for row in rows]
    assert picked != [comes(0.25, 0, 2, row) for row in rows]
    assert 0.2 < np.mean(picked) < 0.3
    assert all(comes(2.25, round_, 1, row) for round_ in (0, 1) for row in rows[:50])
    assert [comes(2.25, 2, 1, row) for row in rows] == picked


def test_a_record_has_one_split() -> None:
    """All turns and samples of a record are on one side; about the share asked for is in eval."""
    sides = {}
    for number in range(600):
        found = {split_of(example(number, sample, turn), 3, 0.1) for sample in range(3) for turn in range(3)}
        assert len(found) == 1
        sides[number] = found.pop()
    assert 30 < sum(side == "eval" for side in sides.values()) < 90
    assert {split_of(example(number), 3, 0.0) for number in range(50)} == {"train"}


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), max_size=60))
def test_seen_is_a_set(keys: list[tuple[int, int]]) -> None:
    """New exactly the first time."""
    table, known = Seen(), set()
    for key in keys * 2:
        stored = (key[0] or 1, key[1])
        assert table.add(key) == (stored not in known)
        known.add(stored)


def test_seen_grows() -> None:
    """Many keys, all kept, at most a few dozen bytes each."""
    table, rng = Seen(), np.random.default_rng(0)
    keys = [tuple(pair) for pair in rng.integers(0, 2**63, (20_000, 2)).tolist()]
    assert all(table.add(key) for key in keys)
    assert not any(table.add(key) for key in keys)
    assert table._table.nbytes <= 64 * len(keys)


def test_what_makes_rows_equal() -> None:
    """`rows`: all ids; `prompts`: the prompt and the sample number."""
    one = example(1)
    other = Example(("s:z#t0~s0",), as_ids([*one.input_ids, 5]), one.segments, "complete", 0, 0, "{}")
    assert key_of(one, "rows") != key_of(other, "rows")
    assert key_of(one, "prompts") == key_of(other, "prompts")
    assert key_of(one, "prompts") != key_of(example(1, sample=1), "prompts")
    assert key_of(one, "rows") == key_of(example(1, sample=1), "rows")


def test_draft_vocabulary() -> None:
    """The most frequent ids, smaller ones first among equals, filled up with ids that never occur."""
    counted = Frequencies(10)
    counted.add(as_ids([7, 7, 3, 9, 9, 1]), np.array([1, 1, 1, 1, 1, 0], bool))
    assert counted.as_dict() == {3: 1, 7: 2, 9: 2}
    d2t, t2d, covered = draft_mapping(counted.counts, 2)
    assert (d2t.tolist(), np.flatnonzero(t2d).tolist(), covered) == ([7, 8], [7, 9], 0.8)
    d2t, t2d, covered = draft_mapping(counted.counts, 5)
    assert (np.arange(5) + d2t).tolist() == np.flatnonzero(t2d).tolist() == [0, 1, 3, 7, 9]
    assert covered == 1.0
    with pytest.raises(JobError, match="at most the target's 10 ids, got 11"):
        draft_mapping(counted.counts, 11)
