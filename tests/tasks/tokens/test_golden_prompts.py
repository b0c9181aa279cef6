"""Prompt ids equal those of the genuine tokenizers and templates, vector by vector."""

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.tokens.template import render
from tests.tasks.tokens.conftest import Load

GOLDEN = json.loads((Path(__file__).resolve().parents[2] / "data" / "golden_prompts.json").read_bytes())
FAMILIES: dict[str, Any] = GOLDEN["families"]
NO_TOKENIZER = ("gpt-oss",)
"""Families in the file whose tokenizer no package holds: their vectors are checked by the grammar tests."""


def cases(kind: str) -> list[Any]:
    """Return one parameter per vector; Kimi runs through our own port on the official ranks."""
    return [
        pytest.param(
            "kimi" if family == "kimi-k2.5" else family,
            name,
            id=f"{family}-{name[:20]}",
            marks=[pytest.mark.shared] if family == "kimi-k2.5" else [],
        )
        for family, vectors in FAMILIES.items()
        if family not in NO_TOKENIZER
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
