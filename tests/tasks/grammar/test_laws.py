"""Laws of the checker that hold for any ids at all."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks.grammar.check import check_row, check_rows
from tasks.grammar.grammar import Grammar
from tasks.rows.records import Completion, Ragged, as_ids
from tasks.rows.verdicts import Code
from tasks.tokenizer.vocabulary import Vocabulary
from tests.support.families import Load

FAMILIES = ["stand-in", "kimi-tiny", "glm-4.5", "gpt-oss", "llama-3.1", "qwen3-instruct-2507", "magistral"]
ANY_ID = st.one_of(st.integers(-(2**31), 2**31 - 1), st.integers(0, 300))
FINISH = st.sampled_from(["stop", "length", "abort", "strange"])


def likely(vocabulary: Vocabulary) -> st.SearchStrategy[int]:
    """Ids of which many are control ids: random ones would hardly ever be."""
    return st.one_of(st.sampled_from(sorted(vocabulary.control_ids.values())), ANY_ID, st.integers(0, 60))


def completion(grammar: Grammar, draw: st.DataObject, vocabulary: Vocabulary, number: int) -> Completion:
    """Draw a row: sometimes a proper prompt, sometimes anything."""
    ids = st.lists(likely(vocabulary), max_size=40)
    head = np.array(draw.draw(ids), np.int32)
    prompt = np.concatenate([head, grammar.default.ids]) if draw.draw(st.booleans()) else head
    output = np.array(draw.draw(ids), np.int32)
    finish = draw.draw(FINISH)
    facts = draw.draw(
        st.sampled_from(
            [{}, {"completion_tokens": output.size}, {"completion_tokens": 3}, {"finish_reason": None}]
        )
    )
    return Completion(f"r{number}", prompt, output, finish, draw.draw(st.none() | ANY_ID), facts=dict(facts))


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draw=st.data())
def test_the_checker_is_total_and_its_segments_tile(family: str, load: Load, draw: st.DataObject) -> None:
    """Any int32 ids get a code, an offset inside the sequence, and segments that tile it in order."""
    vocabulary, grammar = load(family, True)
    row = completion(grammar, draw, vocabulary, 0)
    verdict = check_row(grammar, row)
    size = row.input_ids.size + row.output_ids.size
    assert verdict.code in set(Code)
    assert -1 <= verdict.offset <= size
    edges = [edge for segment in verdict.segments for edge in (segment.start, segment.stop)]
    assert edges == sorted(edges)
    assert [s.start for s in verdict.segments] == (
        [0, *(s.stop for s in verdict.segments)][:-1] if size else []
    )
    assert (verdict.segments[-1].stop if verdict.segments else 0) == size
    assert all(segment.start < segment.stop for segment in verdict.segments)
    assert (verdict.detail == "") == (verdict.code in ("complete", "complete_tools"))


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draw=st.data())
def test_a_batch_is_its_rows_in_order(family: str, load: Load, draw: st.DataObject) -> None:
    """Neither neighbours nor order change a verdict: a batch's verdicts are its rows', concatenated."""
    vocabulary, grammar = load(family, True)
    rows = [completion(grammar, draw, vocabulary, i) for i in range(draw.draw(st.integers(0, 8)))]
    inputs = Ragged.from_rows([row.input_ids for row in rows])
    outputs = Ragged.from_rows([row.output_ids for row in rows])
    for verdict, row in zip(check_rows(grammar, inputs, outputs, rows), rows, strict=True):
        alone = check_row(grammar, row)
        assert (verdict.code, verdict.offset, verdict.detail) == (alone.code, alone.offset, alone.detail)
        assert [(s.kind, s.start, s.stop) for s in verdict.segments] == [
            (s.kind, s.start, s.stop) for s in alone.segments
        ]


def test_lengths_must_agree(load: Load) -> None:
    """Three columns of different length are a mistake of the caller."""
    _, grammar = load("stand-in", True)
    empty, one = Ragged.from_rows([]), Ragged.from_rows([as_ids([1])])
    with pytest.raises(ValueError, match="1 prompts and 0 outputs"):
        check_rows(grammar, one, empty, [])
