"""Whether what came is what the model made: counts, range, the end, echoes and loops. By ids alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tasks.records import Completion, Ids, Ragged
from tasks.tokens.states import Symbol
from tasks.verdicts import Code

if TYPE_CHECKING:
    from tasks.tokens.grammar import Grammar

ECHO = 5
"""SGLang 0.5.1 to 0.5.4 put up to 5 ids of the prompt's tail in front of the output."""

LOOP_PERIOD = 32
LOOP_SPAN = {"length": 128, "stop": 512}
"""A tail is a loop when it repeats with a period of at most 32 ids over this many ids, by finish reason.

Answers that stop by themselves may well hold a long ruler or a table of zeros, so they get more room.
"""

Fault = tuple[Code, int, str]


def integrity_fault(
    grammar: Grammar, prompt: Ids, output: Ids, completion: Completion, first_foreign: int
) -> Fault | None:
    """Return (code, offset into prompt + output, detail) of the first integrity fault, None when intact."""
    facts, finish = completion.facts, completion.finish_reason
    served = facts.get("finish_reason")
    served = served if isinstance(served, Mapping) else {}
    matched = served.get("matched")
    if (isinstance(matched, str) and "nan" in matched.lower()) or finish == "nan":
        return (
            Code.NAN,
            -1,
            f"the server says {matched!r}: its sampler saw NaN and put an end id in its place",
        )
    if finish not in ("stop", "length"):
        return Code.ABORTED, -1, f"expected finish stop or length, got {finish!r}"
    if output.size == 0:
        return Code.NO_OUTPUT, prompt.size, "expected at least one output id, got none"
    counted = facts.get("completion_tokens")
    if counted is not None and counted != output.size:
        return Code.COUNT_MISMATCH, -1, f"the server counted {counted} output ids, {output.size} came"
    counted = facts.get("prompt_tokens")
    if counted is not None and counted != prompt.size:
        return Code.PROMPT_MISMATCH, -1, f"the server counted {counted} prompt ids, {prompt.size} were sent"
    if finish == "length" and served.get("length", output.size) != output.size:
        return (
            Code.COUNT_MISMATCH,
            -1,
            f"the server cut at {served['length']} output ids, {output.size} came",
        )
    if first_foreign >= 0:
        got = int(output[first_foreign])
        return (
            Code.ID_OUT_OF_VOCABULARY,
            prompt.size + first_foreign,
            f"expected ids in [0, {grammar.size}), got {got}",
        )
    return _end_fault(grammar, prompt.size, output, completion)


def _end_fault(grammar: Grammar, base: int, output: Ids, completion: Completion) -> Fault | None:
    last, at = int(output[-1]), base + output.size - 1
    ends = last in grammar.end_ids
    if completion.finish_reason == "length":
        if ends:
            return Code.END_MISSING, at, f"finish length, but the last id {last} ends a turn"
        return None
    matched = completion.matched_stop
    if matched is not None and matched != last:
        return Code.END_MISSING, at, f"the server matched {matched}, the last id is {last}"
    if not ends:
        return (
            Code.END_MISSING,
            at,
            f"finish stop: expected one of {sorted(grammar.end_ids)} last, got {last}",
        )
    return None


def echo_length(grammar: Grammar, prompt: Ids, output: Ids) -> int:
    """Return how many ids of the prompt's tail the output begins with, 0 for none.

    One id alone counts only if it is ordinary text: white space begins many answers by itself, and a control
    id is judged by the grammar.
    """
    for count in range(min(ECHO, prompt.size, output.size), 0, -1):
        if np.array_equal(prompt[prompt.size - count :], output[:count]):
            if count > 1:
                return count
            first = int(output[0])
            return int(grammar.symbols[first] == Symbol.TEXT and not grammar.blank[first])
    return 0


def loops(outputs: Ragged, completions: Sequence[Completion], grammar: Grammar) -> list[int]:
    """Return per row where the loop that ends it is first seen (index into the output), -1 for none."""
    found = [-1] * len(completions)
    for finish, span in LOOP_SPAN.items():
        ended = int(finish == "stop")
        rows = [
            index
            for index, (completion, length) in enumerate(
                zip(completions, outputs.lengths.tolist(), strict=True)
            )
            if completion.finish_reason == finish and length >= span + LOOP_PERIOD + ended
        ]
        if not rows:
            continue
        stops = outputs.offsets[1:][rows] - ended
        window = outputs.ids[stops[:, None] + np.arange(-span - LOOP_PERIOD, 0)]
        recent = window[:, LOOP_PERIOD:]
        periodic = np.zeros(len(rows), np.bool_)
        for period in range(1, LOOP_PERIOD + 1):
            shifted = window[:, LOOP_PERIOD - period : LOOP_PERIOD - period + span]
            hit = recent[:, -1] == shifted[:, -1]
            if hit.any():
                hit[hit] = (recent[hit] == shifted[hit]).all(axis=1)
                periodic |= hit
        starts = stops - span - outputs.offsets[:-1][rows]
        for row, is_loop, start in zip(rows, periodic.tolist(), starts.tolist(), strict=True):
            if is_loop:
                found[row] = start
    return found
