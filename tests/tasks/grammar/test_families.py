"""Every listed family: its grammar is discovered from its tail, and correct answers are complete."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from tasks.grammar.check import check_row, check_rows
from tasks.grammar.grammar import Grammar, discover_grammar
from tasks.job.spec import ModelSpec
from tasks.rows.records import Completion, Ids, Ragged, Verdict, as_ids
from tasks.tokenizer.template import render
from tasks.tokenizer.vocabulary import Vocabulary, load_vocabulary
from tests.support.answers import FORMS, answer
from tests.support.families import Load
from tests.support.model_folders import GENUINE
from tests.support.sketches import SKETCHES, label

EXPECTED = {
    "stand-in": ("kimi", "open", "closed"),
    "kimi-tiny": ("kimi", "open", "closed"),
    "kimi": ("kimi", "open", "closed"),
    "qwen3": ("chatml", "must", "closed"),
    "qwen3.5": ("chatml", "open", "closed"),
    "qwen3.6": ("chatml", "open", "closed"),
    "qwq": ("chatml", "open", None),
    "deepseek-r1": ("deepseek", "open", None),
    "deepseek-v3.1": ("deepseek", "open", "closed"),
    "deepseek-v4": ("deepseek-dsml", "open", "closed"),
    "glm-4.5v": ("glm", "must", "closed"),
    "glm-4.7-flash": ("glm", "open", "closed"),
    "glm-5": ("glm", "open", "closed"),
    "glm-5.1": ("glm", "open", "closed"),
    "glm-5.2": ("glm", "open", "closed"),
    "minimax-m2": ("minimax-m2", "open", None),
    "minimax-m3": ("minimax-m3", "open", "closed"),
    "kimi-k2-thinking": ("kimi", "must", None),
    "kimi-k2-instruct": ("kimi", "never", None),
    "qwen3-thinking-2507": ("chatml", "open", None),
    "qwen3-instruct-2507": ("chatml", "never", None),
    "nemotron-3": ("chatml", "open", "closed"),
    "spelled": ("chatml", "open", "closed"),
    "deepseek-r1-0528": ("deepseek", "must", None),
    "deepseek-v3.2": ("deepseek-dsml", "open", "closed"),
    "glm-4.5": ("glm", "must", "closed"),
    "gpt-oss": ("gpt-oss", "header", None),
    "llama-3.1": ("llama-3", "never", None),
    "magistral": ("mistral", "may", None),
}
"""Family, and the mode of its tail with reasoning on and off (None: no switch), by the models' templates."""


def every(off: Collection[str] = tuple(EXPECTED)) -> list[Any]:
    """Return one parameter per family with reasoning on, and one with it off for the families in `off`."""
    return [
        pytest.param(
            name,
            thinking,
            id=" ".join(filter(None, (name, "on" if thinking else "off", label(name)))).replace(" ", "-"),
            marks=[pytest.mark.shared] if name == "kimi" else [],
        )
        for name, (_, _, switched_off) in EXPECTED.items()
        for thinking in (True, False)
        if thinking or (switched_off is not None and name in off)
    ]


def judged(vocabulary: Vocabulary, grammar: Grammar, text: str, finish: str = "stop") -> Verdict:
    """Return the verdict of an answer to a plain question."""
    output = as_ids(vocabulary.dialect.encode(text))
    return check_row(grammar, Completion("r", question(vocabulary), output, finish))


def question(vocabulary: Vocabulary) -> Ids:
    """Return the prompt of a plain question."""
    return render(vocabulary, [{"role": "user", "content": "What is 2+2?"}])


def test_every_family_is_listed() -> None:
    """The table of expectations misses no family that tests can load."""
    assert EXPECTED.keys() == {"stand-in", "kimi-tiny", "kimi", *GENUINE, *SKETCHES}


@pytest.mark.parametrize(("name", "thinking"), every())
def test_the_grammar_is_read_off_the_tail(name: str, thinking: bool, load: Load) -> None:
    """Family and mode follow from the rendered tail with the job's own arguments."""
    _, grammar = load(name, thinking)
    family, on, off = EXPECTED[name]
    assert (grammar.family, grammar.default.mode) == (family, on if thinking else off)


@pytest.mark.parametrize(("name", "thinking"), every())
def test_a_correct_answer_is_complete(name: str, thinking: bool, load: Load) -> None:
    """The canonical answer is accepted, and its segments are what they say."""
    vocabulary, grammar = load(name, thinking)
    verdict = judged(vocabulary, grammar, answer(grammar))
    assert (verdict.code, verdict.offset, verdict.detail) == ("complete", -1, "")
    kinds = [segment.kind for segment in verdict.segments]
    assert kinds[0] == "prompt"
    assert kinds[-2:] == ["content", "end"]
    assert ("reasoning" in kinds) == (grammar.default.mode not in ("closed", "never"))


@pytest.mark.parametrize(("name", "thinking"), every())
def test_tool_calls_are_complete_tools(name: str, thinking: bool, load: Load) -> None:
    """A turn that calls tools is canonical too, where the family has tool tokens."""
    vocabulary, grammar = load(name, thinking)
    form = FORMS[grammar.family]
    if not _has_call_tokens(vocabulary, form.call):
        assert name == "qwq"
        return
    verdict = judged(vocabulary, grammar, answer(grammar, tools=True))
    assert (verdict.code, verdict.offset) == ("complete_tools", -1), verdict
    assert [segment.kind for segment in verdict.segments][-2:] == ["tool_calls", "end"]


def _has_call_tokens(vocabulary: Vocabulary, call: str) -> bool:
    return any(text in call for text in vocabulary.control_ids)


@pytest.mark.parametrize(("name", "thinking"), every())
def test_a_cut_says_where(name: str, thinking: bool, load: Load) -> None:
    """Any cut of a correct answer by length is intact and named by where it fell, at every position."""
    vocabulary, grammar = load(name, thinking)
    whole = vocabulary.dialect.encode(answer(grammar))
    prompt = question(vocabulary)
    rows = [Completion("r", prompt, as_ids(whole[:stop]), "length") for stop in range(1, len(whole))]
    outputs = Ragged.from_rows([row.output_ids for row in rows])
    verdicts = check_rows(grammar, Ragged.from_rows([prompt] * len(rows)), outputs, rows)
    codes = [verdict.code for verdict in verdicts]
    assert set(codes) <= {"cut_in_reasoning", "cut_in_content"}, verdicts
    assert [verdict.offset for verdict in verdicts] == [prompt.size + stop for stop in range(1, len(whole))]
    assert codes == sorted(codes, reverse=True)
    assert ("cut_in_reasoning" in codes) == (grammar.default.mode not in ("closed", "never"))


@pytest.mark.parametrize(
    ("name", "args", "mode"),
    [
        pytest.param("minimax-m3", {}, "may", id="m3-adaptive"),
        pytest.param("deepseek-v3.1", {}, "closed", id="v3.1-default-is-off"),
        pytest.param("qwen3", {}, "must", id="qwen3-default-is-on"),
        pytest.param("glm-5.2", {"reasoning_effort": "high"}, "open", id="glm-5.2-effort"),
    ],
)
def test_other_arguments_give_other_modes(
    name: str, args: dict[str, Any], mode: str, model_folder: Callable[[str], Path]
) -> None:
    """The mode is what the rendered tail says, also where the job leaves arguments out."""
    vocabulary = load_vocabulary(ModelSpec(tokenizer=str(model_folder(name)), template_args=args))
    grammar = discover_grammar(vocabulary)
    assert grammar.default.mode == mode
    assert judged(vocabulary, grammar, answer(grammar)).code == "complete"


def test_an_adaptive_model_may_answer_at_once(model_folder: Callable[[str], Path]) -> None:
    """MiniMax-M3 by default thinks or not, as it likes: both are complete; an opener in the middle is not."""
    vocabulary = load_vocabulary(ModelSpec(tokenizer=str(model_folder("minimax-m3"))))
    grammar = discover_grammar(vocabulary)
    assert judged(vocabulary, grammar, "At once.[e~[").code == "complete"
    assert judged(vocabulary, grammar, "<mm:think>Hm.</mm:think>So.[e~[").code == "complete"
    assert judged(vocabulary, grammar, "So <mm:think>hm</mm:think>.[e~[").code == "opener_in_output"
    assert judged(vocabulary, grammar, "So.</mm:think>.[e~[").code == "opener_missing"
