"""Ids to verdicts, by ids alone: integrity first, then the grammar. Vectorised over a batch.

The whole batch is looked at in a few array operations: which ids mean anything (`Grammar.symbols`), which are
out of range, which rows end in a loop. Python then walks only the handful of control ids of each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tasks.records import Completion, Ids, Ragged, Segment, Verdict
from tasks.tokens.integrity import echo_length, integrity_fault, loops
from tasks.tokens.walk import Walk
from tasks.verdicts import Code

if TYPE_CHECKING:
    from tasks.tokens.grammar import Grammar


def check_rows(
    grammar: Grammar, inputs: Ragged, outputs: Ragged, completions: Sequence[Completion]
) -> tuple[Verdict, ...]:
    """Return one verdict per row: integrity faults, then prompt echo, then what the grammar says, then loops.

    Args:
        grammar: the job's.
        inputs: prompt ids per row.
        outputs: output ids per row, as they came.
        completions: finish reason, matched stop and the server's counts per row: `facts` may hold
            `completion_tokens`, `prompt_tokens` and the server's own `finish_reason` object.

    Raises:
        ValueError: when the three differ in length.
    """
    if not len(inputs) == len(outputs) == len(completions):
        raise ValueError(f"{len(completions)} completions, {len(inputs)} prompts and {len(outputs)} outputs")
    ids = outputs.ids
    foreign = np.flatnonzero((ids < 0) | (ids >= grammar.size))
    symbols = grammar.symbols[ids] if foreign.size == 0 else _symbols(grammar, ids)
    events = np.flatnonzero(symbols)
    bounds = np.searchsorted(events, outputs.offsets)
    outside = np.searchsorted(foreign, outputs.offsets)
    looping = loops(outputs, completions, grammar)
    starts = outputs.offsets.tolist()
    rows = zip(completions, bounds.tolist(), bounds[1:].tolist(), starts, strict=False)
    verdicts = []
    for index, (completion, low, high, start) in enumerate(rows):
        first_foreign = int(foreign[outside[index]]) - start if outside[index] < outside[index + 1] else -1
        found = (events[low:high] - start).tolist()
        marks = symbols[events[low:high]].tolist()
        verdicts.append(
            _verdict(
                grammar,
                inputs.row(index),
                outputs.row(index),
                completion,
                first_foreign,
                found,
                marks,
                looping[index],
            )
        )
    return tuple(verdicts)


def _symbols(grammar: Grammar, ids: Ids) -> NDArray[np.uint8]:
    known = grammar.symbols[np.clip(ids, 0, grammar.size - 1)]
    known[(ids < 0) | (ids >= grammar.size)] = 0
    return known


def check_row(grammar: Grammar, completion: Completion) -> Verdict:
    """Return the verdict of one completion: `check_rows` for one row."""
    inputs = Ragged.from_rows([completion.input_ids])
    outputs = Ragged.from_rows([completion.output_ids])
    return check_rows(grammar, inputs, outputs, [completion])[0]


def _verdict(
    grammar: Grammar,
    prompt: Ids,
    output: Ids,
    completion: Completion,
    first_foreign: int,
    events: list[int],
    marks: list[int],
    loop: int,
) -> Verdict:
    length = prompt.size + output.size
    whole = _unread(prompt.size, length)
    if not completion.sent:
        return Verdict(completion.code, completion.code_offset, whole, completion.detail)
    fault = integrity_fault(grammar, prompt, output, completion, first_foreign)
    if fault is not None:
        code, offset, detail = fault
        return Verdict(code, offset, whole, detail)
    tail = grammar.tail_of(prompt)
    if tail is None:
        return Verdict(
            Code.PROMPT_MISMATCH,
            max(prompt.size - grammar.default.ids.size, 0),
            whole,
            f"expected a prompt that ends with {grammar.default.ids.tolist()}, "
            f"got {prompt[prompt.size - grammar.default.ids.size :].tolist()}",
        )
    echo = echo_length(grammar, prompt, output)
    if echo:
        return Verdict(
            Code.TAIL_ECHO, prompt.size, whole, f"the output begins with the prompt's last {echo} ids"
        )
    walk = Walk(grammar, output, tail.mode)
    walk.read(events, marks)
    return _close(walk, prompt.size, completion, loop)


def _close(walk: Walk, base: int, completion: Completion, loop: int) -> Verdict:
    if walk.fault is None and loop >= 0:
        walk.fail(Code.REPETITION, loop, "the output ends in a loop")
    code, offset, detail = walk.result(completion.finish_reason)
    segments: list[Any] = [Segment("prompt", 0, base)] if base else []
    segments += [Segment(kind, base + start, base + stop) for kind, start, stop in walk.segments]
    return Verdict(code, offset if offset < 0 else base + offset, tuple(segments), detail)


def _unread(base: int, length: int) -> tuple[Segment, ...]:
    parts = []
    if base:
        parts.append(Segment("prompt", 0, base))
    if length > base:
        parts.append(Segment("unknown", base, length))
    return tuple(parts)
