"""Corruption × family: detected, undetectable (fixed beforehand, with a reason), or missed. Missed is zero.

The checker is told of each row three times:
- `served`: as in a job: both id lists, finish reason, matched stop, the server's counts of prompt and output;
- `uncounted`: the same without the counts, so that the grammar stands alone;
- `ids`: as `rawseq check` has other people's data: both id lists only. A row that ends with an end id
  stopped, any other was cut by length.
Detected means that the default policy (canonical rows, and cut rows marked) does not accept the row.
"""

import random
from collections.abc import Callable

import attrs
import pytest

from tasks.grammar.check import bare_completion, check_rows
from tasks.grammar.grammar import Grammar
from tasks.rows.records import Completion, Ragged, as_ids
from tasks.rows.verdicts import accepted_codes
from tasks.tokenizer.template import render
from tasks.tokenizer.vocabulary import Vocabulary
from tests.corruption.kinds import KINDS, Row
from tests.support.answers import FORMS, answer
from tests.support.families import Load
from tests.support.sketches import label
from tests.tasks.grammar.test_families import every

ROUNDS = 10
"""Random positions per cell and correct row."""

INPUTS = ("served", "uncounted", "ids")


@attrs.frozen
class Cell:
    """One kind on one family with one set of inputs."""

    tried: int
    detected: int


def rows(vocabulary: Vocabulary, grammar: Grammar) -> list[Row]:
    """Return correct rows: plain answers and tool calls, with seeded dice."""
    prompt = render(vocabulary, [{"role": "user", "content": "What is 2+2, and why?"}])
    tools = any(text in FORMS[grammar.family].call for text in vocabulary.control_ids)
    texts = [
        answer(grammar),
        answer(
            grammar, content="First, second, third.\n\nAnd a list:\n- one\n- two", reasoning="Well, a list."
        ),
        *([answer(grammar, tools=True)] if tools else []),
    ]
    outputs = [as_ids(vocabulary.dialect.encode(text)) for text in texts]
    return [
        Row(
            vocabulary,
            grammar,
            prompt,
            output,
            outputs[(index + 1) % len(outputs)],
            random.Random(f"{grammar.family}{index}{turn}"),
        )
        for index, output in enumerate(outputs)
        for turn in range(ROUNDS)
    ]


def given(grammar: Grammar, completion: Completion, inputs: str) -> Completion:
    """Return what the checker is told of a row."""
    if inputs == "ids":
        return bare_completion(grammar, "r", completion.input_ids, completion.output_ids)
    if inputs == "uncounted":
        return attrs.evolve(completion, facts={"finish_reason": completion.facts["finish_reason"]})
    return completion


def table(vocabulary: Vocabulary, grammar: Grammar) -> dict[tuple[str, str], Cell]:
    """Return (kind, inputs) to its cell; detected means: not accepted under the default policy."""
    accepted = accepted_codes("canonical", "keep")
    cells: dict[tuple[str, str], Cell] = {}
    for name, kind in KINDS.items():
        corrupted = [c for row in rows(vocabulary, grammar) if (c := kind(row)) is not None]
        for inputs in INPUTS if corrupted else ():
            told = [given(grammar, completion, inputs) for completion in corrupted]
            prompts = Ragged.from_rows([c.input_ids for c in told])
            outputs = Ragged.from_rows([c.output_ids for c in told])
            verdicts = check_rows(grammar, prompts, outputs, told)
            cells[name, inputs] = Cell(len(told), sum(v.code not in accepted for v in verdicts))
    return cells


Where = Callable[[Grammar], bool]


def anywhere(grammar: Grammar) -> bool:
    """Whatever the family."""
    return True


def blank_tail(grammar: Grammar) -> bool:
    """The prompt ends with white space."""
    return bool(grammar.blank[grammar.default.ids[-1]])


def calls_from_reasoning(grammar: Grammar) -> bool:
    """Kimi in thinking mode: tool calls may come straight out of reasoning."""
    return grammar.family == "kimi" and grammar.thinking


def opener_is_given(grammar: Grammar) -> bool:
    """The model has not to emit an opener, nor headers."""
    return grammar.default.mode not in ("must", "header")


def loose_calls(grammar: Grammar) -> bool:
    """Llama: a token starts a call, and the end of the turn closes it."""
    return grammar.family == "llama-3"


def optional_format(grammar: Grammar) -> bool:
    """gpt-oss: a call may name its format, or not."""
    return grammar.family == "gpt-oss"


UNDETECTABLE: list[tuple[str, str, Where, str]] = [
    (
        "re-tokenize, same length",
        "served uncounted ids",
        anywhere,
        "same counts and structure: only the model knows",
    ),
    (
        "swap two text ids",
        "served uncounted ids",
        anywhere,
        "same counts and structure: only the model knows",
    ),
    (
        "another row's output",
        "served uncounted ids",
        anywhere,
        "a fine answer; serving checks the request id",
    ),
    ("re-tokenize", "uncounted ids", anywhere, "one id as two of the same text is a possible output"),
    ("lose a text id", "uncounted ids", anywhere, "the shorter output is a possible output"),
    ("lose a prompt id", "uncounted ids", anywhere, "the shorter prompt is a possible prompt"),
    ("strip end", "ids", anywhere, "without a finish reason this is a row cut by length"),
    ("cut but said to stop", "ids", anywhere, "without a finish reason this is a row cut by length"),
    ("aborted", "ids", anywhere, "without a finish reason this is a row cut by length"),
    ("NaN", "ids", anywhere, "only the server's reply says so"),
    ("strip all control ids", "ids", opener_is_given, "this is a row cut in its first segment"),
    ("drop a control id", "ids", anywhere, "where the end is dropped, this is a row cut by length"),
    ("echo 1 prompt ids", "uncounted ids", blank_tail, "many answers begin with white space by themselves"),
    (
        "drop closer",
        "uncounted ids",
        calls_from_reasoning,
        "calls straight out of reasoning are Kimi's own form",
    ),
    ("drop a control id", "uncounted", calls_from_reasoning, "the closer before a call: see `drop closer`"),
    (
        "drop a control id",
        "uncounted",
        optional_format,
        "a call without its `<|constrain|>` is one without a format",
    ),
    ("drop a control id", "uncounted", loose_calls, "a call without its starting token is text"),
    ("insert a control id", "uncounted ids", loose_calls, "text after a call's starting token is a call"),
]


def reason_for(kind: str, inputs: str, grammar: Grammar) -> str:
    """Return why a cell cannot be detected, "" when it must be."""
    for name, told, where, reason in UNDETECTABLE:
        if name == kind and inputs in told.split() and where(grammar):
            return reason
    return ""


SEEN: dict[str, dict[tuple[str, str], str]] = {}
"""Column of the printed table to (kind, inputs) to mark."""


OFF_TOO = ("kimi-tiny", "qwen3", "glm-4.7-flash", "deepseek-v3.1", "minimax-m3")
"""Families that run with reasoning off as well: one of each form that a prompt's tail then takes."""


@pytest.mark.parametrize(("name", "thinking"), every(off=OFF_TOO))
def test_no_corruption_passes_unnoticed(name: str, thinking: bool, load: Load) -> None:
    """Every kind is detected at every position tried, but for the cells that are fixed above."""
    vocabulary, grammar = load(name, thinking)
    column = SEEN.setdefault(
        f"{name}{'' if thinking else ' off'}{f' ({label(name)})' if label(name) else ''}", {}
    )
    missed = []
    for (kind, inputs), cell in table(vocabulary, grammar).items():
        reason = reason_for(kind, inputs, grammar)
        column[kind, inputs] = "u" if reason else "D"
        if not reason and cell.detected < cell.tried:
            column[kind, inputs] = "M"
            missed.append(f"{kind} ({inputs}): missed {cell.tried - cell.detected} of {cell.tried}")
        if reason and cell.detected == cell.tried:
            missed.append(f"{kind} ({inputs}): listed as undetectable ({reason}), but always detected")
    assert not missed


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    """The table of this run is printed, one mark per input set: served, uncounted, ids."""
    with capsys.disabled():
        print("\n\nkind × family; three marks a cell: served, uncounted, ids.")
        print("D detected   u undetectable (see UNDETECTABLE)   - cannot happen   M missed\n")
        for number, column in enumerate(SEEN):
            print(f"  {number:2d} {column}")
        print("\n" + " " * 26 + "  ".join(f"{number:>3d}" for number in range(len(SEEN))))
        for kind in KINDS:
            marks = [
                "".join(column.get((kind, inputs), "-") for inputs in INPUTS) for column in SEEN.values()
            ]
            print(f"{kind:26s}" + "  ".join(marks))
    assert not any("M" in column.values() for column in SEEN.values())
