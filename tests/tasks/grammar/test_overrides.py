"""`model.grammar`: a job may describe a chat format that is in no table, or correct one that is."""

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import JobError
from tasks.grammar.check import check_row
from tasks.grammar.grammar import discover_grammar
from tasks.job.spec import ModelSpec
from tasks.rows.records import Completion, as_ids
from tasks.tokenizer.template import render
from tasks.tokenizer.vocabulary import load_vocabulary
from tests.support.sketches import Sketch, sketch_folder

STRANGE = Sketch(
    controls=("<turn>", "<done>", "<muse>", "</muse>", "<do>", "</do>", "<pad>"),
    ends=("<done>",),
    start="<turn>",
    middle=":",
    stop="<done>",
    tail="{{- '<muse>' -}}",
)
GIVEN = {
    "opener": "<muse>",
    "closer": "</muse>",
    "turn_starts": ["<turn>"],
    "tool_begin": "<do>",
    "tool_end": "</do>",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model folder of a family that is in no table."""
    monkeypatch.setitem(__import__("tests.support.sketches", fromlist=["x"]).SKETCHES, "strange", STRANGE)
    return sketch_folder("strange", tmp_path)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        pytest.param("hm</muse>yes<done>", "complete", id="complete"),
        pytest.param("hm</muse><do>look</do><done>", "complete_tools", id="tools"),
        pytest.param("hm<done>", "closer_missing", id="no-closer"),
        pytest.param("hm</muse>a<turn>b<done>", "turn_start_inside", id="turn"),
        pytest.param("hm</muse>a<pad>b<done>", "control_unexpected", id="pad"),
    ],
)
def test_a_described_format_is_checked(folder: Path, answer: str, code: str) -> None:
    """With its tokens named in the job, an unknown format gets the same verdicts as a known one."""
    vocabulary = load_vocabulary(ModelSpec(tokenizer=str(folder), grammar=GIVEN))
    grammar = discover_grammar(vocabulary)
    assert (grammar.family, grammar.default.mode) == ("job", "open")
    prompt = render(vocabulary, [{"role": "user", "content": "Well?"}])
    output = as_ids(vocabulary.dialect.encode(answer))
    assert check_row(grammar, Completion("r", prompt, output, "stop")).code == code


def test_an_unknown_format_says_what_to_do(folder: Path) -> None:
    """Without a description the job stops and shows how its prompts end."""
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 257}))
    vocabulary = load_vocabulary(ModelSpec(tokenizer=str(folder)))
    with pytest.raises(JobError, match=r"no known family.*<muse>.*model\.grammar"):
        discover_grammar(vocabulary)


def test_end_ids_may_be_given(folder: Path) -> None:
    """A generation_config.json that is wrong or missing is overridden by text or id."""
    (folder / "generation_config.json").unlink()
    spec = ModelSpec(tokenizer=str(folder), grammar={**GIVEN, "end": ["<done>", 262]})
    assert load_vocabulary(spec).end_ids == {257, 262}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param({"openner": "<muse>"}, r"grammar\.openner: expected one of", id="unknown-field"),
        pytest.param({"opener": "<muse>"}, "opener and closer come together", id="half-a-pair"),
        pytest.param({"thinking": "on"}, r"thinking: expected open, closed.*got 'on'", id="mode"),
        pytest.param({"family": "kimmy"}, r"family: expected kimi.*got 'kimmy'", id="family"),
        pytest.param({"end": ["<finished>"]}, r"end: expected control tokens.*<finished>", id="end"),
        pytest.param({"plain": "<pad>"}, r"plain: expected a list", id="list"),
    ],
)
def test_wrong_descriptions_are_named(folder: Path, given: dict[str, Any], message: str) -> None:
    """A mistake in `model.grammar` stops the job with field, expected and got."""
    with pytest.raises(JobError, match=message):
        discover_grammar(load_vocabulary(ModelSpec(tokenizer=str(folder), grammar=given)))
