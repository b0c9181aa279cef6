"""How often a good row is rejected: on answers that a model generated, and on texts that people wrote."""

import argparse
import ast
import inspect
import json
import re
import tarfile
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from deployments.standin.generation import Generation, Stops
from deployments.standin.network import Network
from deployments.standin.sampling import Choice
from deployments.standin.stepper import Stepper
from deployments.standin.weights import load as load_weights
from tasks.grammar.check import check_rows
from tasks.grammar.grammar import Grammar
from tasks.rows.records import Completion, Ragged, as_ids
from tasks.rows.verdicts import CUT, kind_of
from tasks.tokenizer.plain import encode_plain
from tasks.tokenizer.template import render
from tasks.tokenizer.vocabulary import Vocabulary
from tests.corruption.test_corruption import OFF_TOO
from tests.support.answers import FORMS, answer
from tests.support.families import Load
from tests.support.model_folders import STANDIN
from tests.tasks.grammar.test_families import every

ROOT = Path(__file__).resolve().parents[2]
CAP = 128
CANONICAL_TEXT = re.compile(r"\s*[^<>\s][^<>]*</think>\s*[^<>\s][^<>]*<\|im_end\|>")
"""A second opinion, on text: reasoning, one closer, content, one end."""


def generated(vocabulary: Vocabulary, rows: int) -> list[Completion]:
    """Let the embedded model answer the demo's prompts at temperature 0.7, straight from its decoder."""
    lines = (ROOT / "deployments" / "local" / "prompts.jsonl").read_text().splitlines()
    asked = [json.loads(line) for line in lines]
    messages = [
        a.get("messages") or [{"role": "user", "content": a["prompt"]}]
        for a in asked
        if "prompt" in a or "messages" in a
    ]
    prompts = [render(vocabulary, m).tolist() for m in messages[:rows]]
    stepper = Stepper(Network(load_weights(STANDIN), -(-rows // 16), 1024))
    end = vocabulary.control_ids["<|im_end|>"]
    made = [
        Generation(str(i), prompt, Choice(temperature=0.7, top_p=0.95, seed=i), Stops(CAP, frozenset({end})))
        for i, prompt in enumerate(prompts)
    ]
    held: list[Generation | None] = [*made, *[None] * (stepper.slots - len(made))]
    while any(held):
        for picked in stepper.step(held):
            picked.generation.output.append(picked.token)
            if picked.token == end or len(picked.generation.output) == CAP:
                held[picked.slot] = None
    return [
        Completion(
            f"r{g.rid}",
            as_ids(g.prompt),
            as_ids(g.output),
            "stop" if g.output[-1] == end else "length",
            end if g.output[-1] == end else None,
            facts={"completion_tokens": len(g.output), "prompt_tokens": len(g.prompt)},
        )
        for g in made
    ]


def judged(grammar: Grammar, rows: list[Completion]) -> list[str]:
    """Return the codes of rows."""
    inputs = Ragged.from_rows([row.input_ids for row in rows])
    outputs = Ragged.from_rows([row.output_ids for row in rows])
    return [str(verdict.code) for verdict in check_rows(grammar, inputs, outputs, rows)]


def test_genuine_generations_are_not_rejected_falsely(load: Load, capsys: pytest.CaptureFixture[str]) -> None:
    """No row of a faithful decoder is called corrupt, and none that reads well on text is rejected."""
    vocabulary, grammar = load("stand-in", True)
    rows = generated(vocabulary, 32)
    codes = judged(grammar, rows)
    good = [bool(CANONICAL_TEXT.fullmatch(vocabulary.decode(row.output_ids.tolist()))) for row in rows]
    false = sum(text_is_good and code != "complete" for text_is_good, code in zip(good, codes, strict=True))
    with capsys.disabled():
        print(f"\ngenuine generations of the embedded model: {len(rows)} rows, {sum(good)} canonical by text")
        print(f"  verdicts {dict(Counter(codes))}; false rejects {false} of {sum(good)}")
    assert false == 0
    assert not [code for code in codes if kind_of(code) == "integrity"]  # type: ignore[arg-type]
    assert sum(good) >= 0.9 * len(rows)


def written() -> Iterator[str]:
    """Yield pieces of text that people wrote: source and documentation of the standard library."""
    modules: list[ModuleType] = [argparse, ast, inspect, json.decoder, re, tarfile, textwrap]
    for module in modules:
        text = inspect.getsource(module)
        yield from (text[at : at + 1500] for at in range(0, min(len(text), 30_000), 1500))


@pytest.mark.parametrize(("name", "thinking"), every(off=OFF_TOO))
def test_human_text_in_a_correct_form_is_complete(
    name: str, thinking: bool, load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever ordinary text stands in reasoning and content, the verdict is complete."""
    vocabulary, grammar = load(name, thinking)
    prompt = render(vocabulary, [{"role": "user", "content": "Go on."}])
    mark = "\x00"
    frame = answer(grammar, content=mark, reasoning=mark)
    pieces = [vocabulary.dialect.encode(piece) if piece else [] for piece in frame.split(mark)]
    rows = []
    for text in written():
        body = encode_plain(vocabulary, text)
        ids = [id for piece in pieces for id in (*piece, *body)][: -len(body)]
        rows.append(Completion("r", prompt, np.asarray(ids, np.int32), "stop", ids[-1]))
    codes = Counter(judged(grammar, rows))
    with capsys.disabled():
        false = len(rows) - codes["complete"]
        print(f"\n{name}{'' if thinking else ' off'}: {len(rows)} texts, false rejects {false}")
    assert codes == {"complete": len(rows)}


@pytest.mark.parametrize("cap", [16, 40, 159, None], ids=str)
def test_cut_rows_are_not_called_loops(load: Load, cap: int | None) -> None:
    """Human text cut by length, wherever the cap falls, is cut, not repetition."""
    vocabulary, grammar = load("stand-in", True)
    prompt = render(vocabulary, [{"role": "user", "content": "Go on."}])
    cuts = [as_ids(encode_plain(vocabulary, text)[:cap]) for text in written()]
    rows = [Completion("r", prompt, ids, "length") for ids in cuts]
    codes = Counter(judged(grammar, rows))
    assert set(codes) <= {str(code) for code in CUT}


@pytest.mark.family
def test_a_closer_typed_by_the_user_closes_nothing(load: Load) -> None:
    """Reasoning is read from behind the prompt's tail: the user's text cannot open or close it."""
    for name in ("kimi-tiny", "qwen3", "glm-4.7-flash"):
        vocabulary, grammar = load(name, True)
        prompt = render(vocabulary, [{"role": "user", "content": "X"}]).tolist()
        faked = as_ids([*grammar.opener_ids, *grammar.closer_ids, *prompt])
        opener = FORMS[grammar.family].opener if grammar.default.mode == "must" else ""
        output = as_ids(vocabulary.dialect.encode(answer(grammar)))
        unclosed = as_ids(vocabulary.dialect.encode(opener + "Well, let me"))
        rows = [Completion("r", faked, output, "stop"), Completion("r", faked, unclosed, "length")]
        assert judged(grammar, rows) == ["complete", "cut_in_reasoning"]
