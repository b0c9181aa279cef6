"""Ids to verdicts, by ids alone: integrity first, then the grammar. Vectorised over a batch.

A batch is scanned as a whole (`scan`). What is left of a row is a handful of control ids with what stands
between them; rows with equal such shapes share one walk through the grammar.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from tasks.records import Completion, Ids, Ragged, Segment, Verdict
from tasks.tokens.integrity import Fault, integrity_fault
from tasks.tokens.scan import Scan, scan_batch
from tasks.tokens.walk import Walk
from tasks.verdicts import CANONICAL, CUT, Code

if TYPE_CHECKING:
    from tasks.tokens.grammar import Grammar

_SHAREABLE = CANONICAL | CUT


@attrs.frozen(slots=True, eq=False)
class Outline:
    """A faultless walk with places instead of numbers: place 2k is event k, 2k + 1 the id behind it."""

    code: str
    detail: str
    segments: tuple[tuple[str, int, int], ...]


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
    judge = _Judge(grammar, inputs, outputs, scan_batch(grammar, inputs, outputs, completions))
    return tuple(judge.verdict(row, completion) for row, completion in enumerate(completions))


def check_row(grammar: Grammar, completion: Completion) -> Verdict:
    """Return the verdict of one completion: `check_rows` for one row."""
    inputs = Ragged.from_rows([completion.input_ids])
    outputs = Ragged.from_rows([completion.output_ids])
    return check_rows(grammar, inputs, outputs, [completion])[0]


class _Judge:
    """Gives the verdicts of one scanned batch."""

    def __init__(self, grammar: Grammar, inputs: Ragged, outputs: Ragged, scan: Scan) -> None:
        self._grammar = grammar
        self._scan = scan
        self._prompts = inputs
        self._outputs = outputs
        self._prompt_sizes = inputs.lengths.tolist()
        self._output_sizes = outputs.lengths.tolist()
        self._outlines: dict[tuple[int, bytes, bytes], Outline] = {}

    def verdict(self, row: int, completion: Completion) -> Verdict:
        """Return the verdict of row `row`."""
        base, size = self._prompt_sizes[row], self._output_sizes[row]
        scan = self._scan
        if not completion.sent:
            return Verdict(
                completion.code, completion.code_offset, unread(base, base + size), completion.detail
            )
        output = self._outputs.row(row)
        fault = self._foreign_prompt(row) or integrity_fault(
            self._grammar, base, output, completion, scan.foreign[row]
        )
        if fault is not None:
            return Verdict(fault[0], fault[1], unread(base, base + size), fault[2])
        if scan.tails[row] < 0:
            return self._no_tail(row)
        if scan.echoes[row]:
            detail = f"the output begins with the prompt's last {scan.echoes[row]} ids"
            return Verdict(Code.TAIL_ECHO, base, unread(base, base + size), detail)
        return self._read(row, output, completion.finish_reason)

    def _foreign_prompt(self, row: int) -> Fault | None:
        at = self._scan.prompt_foreign[row]
        if at < 0:
            return None
        got = int(self._prompts.row(row)[at])
        return Code.ID_OUT_OF_VOCABULARY, at, f"expected prompt ids in [0, {self._grammar.size}), got {got}"

    def _read(self, row: int, output: Ids, finish_reason: str) -> Verdict:
        scan, base = self._scan, self._prompt_sizes[row]
        low, high = scan.bounds[row], scan.bounds[row + 1]
        marks, gaps = scan.marks[low:high], scan.gaps[low + row : high + row + 1]
        events = scan.positions[low:high]
        if scan.loops[row] < 0:
            outline = self._outlines.get((scan.tails[row], marks, gaps))
            if outline is not None:
                return _fill(outline, base, events, output.size)
        walk = Walk(self._grammar, output, self._grammar.tails[scan.tails[row]].mode)
        walk.read(events, list(marks))
        if walk.fault is None and scan.loops[row] >= 0:
            walk.fail(Code.REPETITION, scan.loops[row], "the output ends in a loop")
        code, offset, detail = walk.result(finish_reason)
        if code in _SHAREABLE and walk.shareable:
            outline = Outline(code, detail, _places(walk.segments, events, output.size))
            self._outlines[scan.tails[row], marks, gaps] = outline
        segments = [Segment(kind, base + start, base + stop) for kind, start, stop in walk.segments]
        if base:
            segments.insert(0, Segment("prompt", 0, base))
        return Verdict(code, offset if offset < 0 else base + offset, tuple(segments), detail)

    def _no_tail(self, row: int) -> Verdict:
        prompt, wanted = self._prompts.row(row), self._grammar.default.ids
        got = prompt[max(prompt.size - wanted.size, 0) :].tolist()
        return Verdict(
            Code.PROMPT_MISMATCH,
            max(prompt.size - wanted.size, 0),
            unread(prompt.size, prompt.size + self._output_sizes[row]),
            f"expected a prompt that ends with {wanted.tolist()}, got {got}",
        )


def _places(
    segments: list[tuple[str, int, int]], events: list[int], size: int
) -> tuple[tuple[str, int, int], ...]:
    """Name each boundary by the event it stands at: -1 the start of the output, -2 its end."""
    names = {size: -2, 0: -1}
    for number, at in enumerate(events):
        names[at + 1] = 2 * number + 1
    for number, at in enumerate(events):
        names[at] = 2 * number
    return tuple((kind, names[start], names[stop]) for kind, start, stop in segments)


def _fill(outline: Outline, base: int, events: list[int], size: int) -> Verdict:
    """Return the verdict of a row whose shape was walked before."""
    ends = [base + at + after for at in events for after in (0, 1)]
    ends += [base + size, base]  # places -2 and -1
    segments = [Segment(kind, ends[start], ends[stop]) for kind, start, stop in outline.segments]
    if base:
        segments.insert(0, Segment("prompt", 0, base))
    offset = -1 if outline.code in CANONICAL else base + size
    return Verdict(outline.code, offset, tuple(segments), outline.detail)


def unread(base: int, length: int) -> tuple[Segment, ...]:
    """Return the segments of a row whose output is not read: prompt and unknown."""
    parts = []
    if base:
        parts.append(Segment("prompt", 0, base))
    if length > base:
        parts.append(Segment("unknown", base, length))
    return tuple(parts)
