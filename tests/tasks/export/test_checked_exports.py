"""`rawseq check` takes what `export` wrote: every format, every option, accepted rows of every kind."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.export.export import export
from tasks.export.options import ExportOptions
from tasks.grammar.check import bare_completion, check_row
from tasks.grammar.foreign import judge_files
from tasks.grammar.grammar import Grammar
from tasks.rows.records import Ids, as_ids
from tasks.rows.verdicts import CANONICAL, CUT
from tasks.store.contract import ObjectStore
from tasks.tokenizer.template import render
from tasks.tokenizer.vocabulary import Vocabulary
from tests.support.answers import answer
from tests.support.byte_families import byte_family
from tests.support.stores import RESOLVED, Row, folder_store, make_store

FAMILIES = [
    "kimi open",
    "kimi must",
    "chatml open",
    "chatml must",
    "glm must",
    "gpt-oss header",
    "mistral may",
]

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no reasoning": {"mask": ("reasoning",)},
    "no tags": {"mask": ("think",)},
    "reasoning only": {"mask": ("content", "tool_calls", "end", "closer")},
    "content only": {"mask": ("opener", "reasoning", "closer", "end")},
    "no end": {"mask": ("end",)},
    "prefilled opener": {"learn_prefill": True},
    "eagle3 of SpecForge": {"boundary": "specforge-0.2.0-eagle3"},
    "eagle3 of speculators": {"boundary": "speculators-0.9.0-eagle3"},
    "eagle3, no reasoning": {"boundary": "specforge-0.2.0-eagle3", "mask": ("reasoning",)},
    "eagle3, prefilled opener": {"boundary": "speculators-0.9.0-eagle3", "learn_prefill": True},
    "cut": {"max_length": 90},
    "cut eagle3": {"max_length": 90, "boundary": "specforge-0.2.0-eagle3"},
    "many files": {"file_tokens": 300},
}
"""What an export may be asked for that changes ids or masks."""

FORMATS = ["speculators", "speculators-arrow", "datasets"]


def turns(vocabulary: Vocabulary, grammar: Grammar, name: str, texts: list[str]) -> list[Row]:
    """Return turns of which each prompt begins with the turn before, judged by the grammar."""
    rows: list[Row] = []
    prompt = render(vocabulary, [{"role": "user", "content": f"Well, {name}?"}])
    more = render(vocabulary, [{"role": "user", "content": "And?"}])
    for turn, text in enumerate(texts):
        output = as_ids(vocabulary.dialect.encode(text))
        rows.append(_row(grammar, name, turn, prompt, output))
        prompt = np.concatenate([prompt, output, more])
    return rows


def _row(grammar: Grammar, name: str, turn: int, prompt: Ids, output: Ids) -> Row:
    verdict = check_row(grammar, bare_completion(grammar, name, prompt, output))
    assert verdict.code in CANONICAL | CUT, verdict
    ids = [*prompt.tolist(), *output.tolist()]
    made = tuple((part.kind, tuple(ids[part.start : part.stop])) for part in verdict.segments[1:])
    return Row(name, tuple(prompt.tolist()), made, verdict.code, turn=turn, extends=turn > 0)


def dataset(family: str, folder: Path) -> ObjectStore:
    """Commit conversations of one turn and of three, with calls, answers, and a last one that was cut."""
    vocabulary, grammar = byte_family(family)
    calls, last = answer(grammar, tools=True), answer(grammar, content="Four.")
    cut = last[: len(last) // 2]
    rows = [
        *turns(vocabulary, grammar, "a", [answer(grammar)]),
        *turns(vocabulary, grammar, "b", [calls, answer(grammar), last]),
        *turns(vocabulary, grammar, "c", [answer(grammar), cut]),
        *turns(vocabulary, grammar, "d", [calls]),
    ]
    resolved = RESOLVED | {"grammar": grammar.describe()}
    resolved["tokenizer"] = RESOLVED["tokenizer"] | {"size": grammar.size}
    return make_store(folder, [rows], resolved=resolved)


def checked(store: ObjectStore, grammar: Grammar, out: Path, **options: Any) -> list[str]:
    """Export, check the folder that was written, and return what is refused; every row is judged."""
    report = export([store], [1.0], ExportOptions(**options), folder_store(out))
    judged = list(judge_files(out, grammar))
    assert len(judged) == report["rows"]["written"]["train"] > 0
    for row in judged:
        parts = row.verdict.segments
        assert all(one.stop == other.start for one, other in pairwise(parts)), parts
    good = CANONICAL | CUT
    return [f"{row.row_id}: {row.verdict}" for row in judged if row.verdict.code not in good]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_export_is_judged_fine(family: str, tmp_path: Path) -> None:
    """Rows alone and turns as one sequence, with a mask and with the prompt's length beside it."""
    _, grammar = byte_family(family)
    store = dataset(family, tmp_path / "store")
    asked = [(to, name) for to in ("specforge", "parquet") for name in OPTIONS]
    for to, name in [*asked, *((to, "plain") for to in FORMATS)]:
        for merged in (False, True):
            out = tmp_path / f"{to} {name} {merged}"
            refused = checked(store, grammar, out, to=to, merge_turns=merged, **OPTIONS[name])
            assert refused == [], (to, name, merged)
