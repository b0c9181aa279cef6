"""One row for every code that the checker gives, with its place: what retry, policy and reports rely on."""

from typing import Any

import numpy as np
import pytest

from tasks.grammar.check import check_row
from tasks.rows.records import Completion
from tasks.rows.verdicts import NEVER_SENT, Code
from tasks.tokenizer.template import render
from tests.support.families import Load
from tests.tasks.turns.test_turns import ONE_CALL

WELL, CALLING = "a</think>b<|im_end|>", "a</think><|tool_calls_section_begin|><|tool_call_begin|>f"

ROWS: dict[Code, tuple[str, str, int, dict[str, Any]]] = {
    Code.COMPLETE: (WELL, "stop", -1, {}),
    Code.COMPLETE_TOOLS: (f"a</think>{ONE_CALL}<|im_end|>", "stop", -1, {}),
    Code.CUT_IN_REASONING: ("a", "length", 1, {}),
    Code.CUT_IN_CONTENT: ("a</think>b", "length", 3, {}),
    Code.CUT_IN_TOOLS: (CALLING, "length", 5, {}),
    Code.COUNT_MISMATCH: (WELL, "stop", -1, {"completion_tokens": 5}),
    Code.PROMPT_MISMATCH: (WELL, "stop", -1, {"prompt_tokens": 1}),
    Code.END_MISSING: ("a</think>b", "stop", 2, {}),
    Code.ABORTED: ("a", "abort", -1, {}),
    Code.NAN: (WELL, "stop", -1, {"finish_reason": {"type": "stop", "matched": "NaN happened"}}),
    Code.NO_OUTPUT: ("", "stop", 0, {}),
    Code.CLOSER_MISSING: ("a<|im_end|>", "stop", 1, {}),
    Code.CLOSER_REPEATED: ("a</think>b</think>c<|im_end|>", "stop", 3, {}),
    Code.OPENER_IN_OUTPUT: ("a<think>b</think>c<|im_end|>", "stop", 1, {}),
    Code.TOOLS_UNBALANCED: (f"{CALLING}<|im_end|>", "stop", 5, {}),
    Code.TURN_START_INSIDE: ("a</think>b<|im_user|>c<|im_end|>", "stop", 3, {}),
    Code.AFTER_END: ("a</think>b<|im_end|>c<|im_end|>", "stop", 4, {}),
    Code.CONTROL_UNEXPECTED: ("a</think>b[BOS]<|im_end|>", "stop", 3, {}),
    Code.REASONING_EMPTY: ("</think>b<|im_end|>", "stop", 0, {}),
    Code.CONTENT_EMPTY: ("a</think><|im_end|>", "stop", 2, {}),
    Code.REPETITION: ("a</think>" + "b" * 400, "length", 402 - 128, {}),
}
"""Code to output, finish reason, offset into the output (-1: none; a character is an id here), facts."""

OTHERWISE = {Code.ID_OUT_OF_VOCABULARY, Code.OPENER_MISSING, Code.TAIL_ECHO}
"""Codes of rows that are no text, or of another family: below."""


def test_every_code_has_its_row() -> None:
    """No code of the checker is without a row that gets it."""
    assert set(ROWS) | OTHERWISE == set(Code) - NEVER_SENT


@pytest.mark.parametrize("code", ROWS, ids=str)
def test_a_row_gets_its_code_and_place(code: Code, load: Load) -> None:
    """Each kind of row has its own code, at the place where it goes wrong."""
    vocabulary, grammar = load("kimi-tiny", True)
    text, finish, at, facts = ROWS[code]
    prompt = render(vocabulary, [{"role": "user", "content": "Well?"}])
    output = np.array(vocabulary.dialect.encode(text), np.int32)
    verdict = check_row(grammar, Completion("r", prompt, output, finish, facts=dict(facts)))
    assert (verdict.code, verdict.offset) == (code, at if at < 0 else prompt.size + at), verdict


def test_codes_that_no_text_of_this_family_gives(load: Load) -> None:
    """An id past the vocabulary, an echo of the prompt, an opener that the model should have emitted."""
    vocabulary, grammar = load("kimi-tiny", True)
    prompt = render(vocabulary, [{"role": "user", "content": "Well?"}])
    whole = vocabulary.dialect.encode(WELL)
    for ids, code, at in (
        ([*whole[:1], grammar.size, *whole[1:]], "id_out_of_vocabulary", 1),
        ([*prompt[-3:].tolist(), *whole], "tail_echo", 0),
    ):
        verdict = check_row(grammar, Completion("r", prompt, np.array(ids, np.int32), "stop"))
        assert (verdict.code, verdict.offset) == (code, prompt.size + at)
    vocabulary, grammar = load("kimi-k2-thinking", True)
    prompt = render(vocabulary, [{"role": "user", "content": "Well?"}])
    output = np.array(vocabulary.dialect.encode("b<|im_end|>"), np.int32)
    verdict = check_row(grammar, Completion("r", prompt, output, "stop"))
    assert (verdict.code, verdict.offset) == ("opener_missing", prompt.size)


@pytest.mark.parametrize("code", ["complete", "complete_tools"])
def test_an_end_id_as_the_last_allowed_id_ends_the_row(code: str, load: Load) -> None:
    """SGLang up to 0.5.16 says `length` there, later ones `stop`: the ids are the same, so is the verdict."""
    vocabulary, grammar = load("kimi-tiny", True)
    prompt = render(vocabulary, [{"role": "user", "content": "Well?"}])
    output = np.array(vocabulary.dialect.encode(ROWS[Code(code)][0]), np.int32)
    told = {"completion_tokens": output.size, "finish_reason": {"type": "length", "length": output.size}}
    verdicts = [
        check_row(grammar, Completion("r", prompt, output, finish, matched, facts=facts))
        for finish, matched, facts in (("stop", int(output[-1]), {}), ("length", None, told))
    ]
    assert [(v.code, v.offset, v.segments) for v in verdicts] == [(code, -1, verdicts[0].segments)] * 2
