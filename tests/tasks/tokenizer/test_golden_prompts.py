"""Prompt ids equal those of the genuine tokenizers and templates, vector by vector."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tasks.rows.records import as_ids
from tasks.tokenizer.template import render
from tests.support.families import Load

GOLDEN = json.loads((Path(__file__).resolve().parents[2] / "data" / "golden_prompts.json").read_bytes())
FAMILIES: dict[str, Any] = GOLDEN["families"]
GENUINE_GPT_OSS = pytest.mark.skipif("RAWSEQ_NPM" not in os.environ, reason="its tokenizer: make test-npm")
MARKS = {"kimi-k2.5": pytest.mark.shared, "gpt-oss": GENUINE_GPT_OSS}


def cases(kind: str) -> list[Any]:
    """Return one parameter per vector; Kimi runs through our own port on the official ranks."""
    return [
        pytest.param(
            "kimi" if family == "kimi-k2.5" else family,
            name,
            id=f"{family}-{name[:20]}",
            marks=[MARKS[family]] if family in MARKS else [],
        )
        for family, vectors in FAMILIES.items()
        if (family, kind) != ("gpt-oss", "rendered")
        for name in vectors[kind]
    ]


@pytest.mark.parametrize(("family", "name"), cases("rendered"))
def test_rendered_prompts_are_the_genuine_ones(family: str, name: str, load: Load) -> None:
    """`render` gives the ids that the genuine tokenizer and template gave."""
    vector = FAMILIES["kimi-k2.5" if family == "kimi" else family]["rendered"][name]
    vocabulary, grammar = load(family, True)
    ids = render(vocabulary, vector["messages"], args=vector["kwargs"])
    assert ids.tolist() == vector["input_ids"]
    if name.endswith("/on"):
        assert grammar.tail_of(ids) is grammar.default


@pytest.mark.parametrize(("family", "text"), cases("encoded"))
def test_encoded_texts_are_the_genuine_ones(family: str, text: str, load: Load) -> None:
    """Plain text gets the genuine ids."""
    vector = FAMILIES["kimi-k2.5" if family == "kimi" else family]["encoded"]
    vocabulary, _ = load(family, True)
    assert vocabulary.dialect.encode(text) == vector[text]


@GENUINE_GPT_OSS
@pytest.mark.parametrize("name", FAMILIES["gpt-oss"]["rendered"], ids=lambda name: f"gpt-oss-{name}")
def test_a_rendered_prompt_is_what_its_text_encodes_to(name: str, load: Load) -> None:
    """No package has gpt-oss's template: its genuine prompts are read and encoded again as they are."""
    ids = FAMILIES["gpt-oss"]["rendered"][name]["input_ids"]
    vocabulary, grammar = load("gpt-oss", True)
    text = vocabulary.decode(ids)
    assert vocabulary.dialect.encode(text) == ids
    assert FAMILIES["gpt-oss"]["rendered"][name]["messages"][-1]["content"] in text
    assert grammar.tail_of(as_ids(ids)) is grammar.default
