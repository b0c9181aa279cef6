"""Ids to verdicts, by ids alone: integrity first, then the grammar. Vectorised over a batch.

A batch is scanned as a whole (`scan`). What is left of a row is a handful of control ids with what stands
between them: its shape. Rows of equal shape share one walk through the grammar, and their segments are filled
in column by column.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat

import numpy as np

from tasks.grammar.grammar import Grammar
from tasks.grammar.integrity import Fault, end_fault, reply_fault
from tasks.grammar.scan import scan_batch
from tasks.grammar.walk import Walk
from tasks.rows.records import Completion, Ids, Ragged, Segment, Verdict
from tasks.rows.verdicts import CANONICAL, CUT, Code

_SHAREABLE = CANONICAL | CUT

_segment = partial(tuple.__new__, Segment)
"""`Segment._make` without a Python frame a segment: with it a third of all time went there."""


def check_rows(
    grammar: Grammar,
    inputs: Ragged,
    outputs: Ragged,
    completions: Sequence[Completion],
    *,
    earlier: bool = False,
) -> tuple[Verdict, ...]:
    """Return one verdict per row: integrity faults, then prompt echo, then what the grammar says, then loops.

    Args:
        grammar: the job's.
        inputs: prompt ids per row.
        outputs: output ids per row, as they came.
        completions: finish reason, matched stop and the server's counts per row: `facts` may hold
            `completion_tokens`, `prompt_tokens` and the server's own `finish_reason` object.
        earlier: judge as version 0.1 up to commit f70c062 did, for the audit of what it stored: an end id
            that a server calls `length` was `end_missing`, and a loop had at least 160 ids.

    Raises:
        ValueError: when the three differ in length.
    """
    if not len(inputs) == len(outputs) == len(completions):
        raise ValueError(f"{len(completions)} completions, {len(inputs)} prompts and {len(outputs)} outputs")
    judge = _Judge(grammar, inputs, outputs, completions, earlier)
    verdicts = {row: verdict for row in range(len(completions)) if (verdict := judge.unread(row)) is not None}
    for rows in judge.shapes(verdicts):
        verdicts.update(judge.read(rows))
    return tuple([verdicts[row] for row in range(len(completions))])


def check_row(grammar: Grammar, completion: Completion) -> Verdict:
    """Return the verdict of one completion: `check_rows` for one row."""
    inputs = Ragged.from_rows([completion.input_ids])
    outputs = Ragged.from_rows([completion.output_ids])
    return check_rows(grammar, inputs, outputs, [completion])[0]


def bare_completion(grammar: Grammar, row_id: str, prompt: Ids, output: Ids) -> Completion:
    """Return a completion of which only the ids are known.

    A row that ends with an end id stopped there; any other is taken for one that was cut.
    """
    ended = output.size > 0 and int(output[-1]) in grammar.end_ids
    return Completion(
        row_id, prompt, output, "stop" if ended else "length", int(output[-1]) if ended else None
    )


class _Judge:
    """Gives the verdicts of one batch."""

    def __init__(
        self,
        grammar: Grammar,
        inputs: Ragged,
        outputs: Ragged,
        completions: Sequence[Completion],
        earlier: bool,
    ) -> None:
        self._grammar = grammar
        self._prompts = inputs
        self._outputs = outputs
        self._completions = completions
        self._earlier = earlier
        self._scan = scan_batch(grammar, inputs, outputs, completions, earlier=earlier)
        self._bases = inputs.lengths.tolist()
        self._sizes = outputs.lengths.tolist()

    def unread(self, row: int) -> Verdict | None:
        """Return the verdict of a row whose output the grammar need not read; None for all others."""
        completion, scan, base = self._completions[row], self._scan, self._bases[row]
        if not completion.sent:
            return self._told(row, completion.code, completion.code_offset, completion.detail)
        fault = self._integrity_fault(row, completion)
        if fault is None and scan.tails[row] < 0:
            fault = self._no_tail(row)
        if fault is None and scan.echoes[row]:
            fault = (
                Code.TAIL_ECHO,
                base,
                f"the output begins with the prompt's last {scan.echoes[row]} ids",
            )
        return None if fault is None else self._told(row, *fault)

    def _integrity_fault(self, row: int, completion: Completion) -> Fault | None:
        base, size, size_limit = self._bases[row], self._sizes[row], self._grammar.size
        at, foreign = self._scan.prompt_foreign[row], self._scan.foreign[row]
        if at >= 0:
            got = int(self._prompts.row(row)[at])
            return Code.ID_OUT_OF_VOCABULARY, at, f"expected prompt ids in [0, {size_limit}), got {got}"
        fault = reply_fault(base, size, completion)
        if fault is not None:
            return fault
        if foreign >= 0:
            got = int(self._outputs.row(row)[foreign])
            return Code.ID_OUT_OF_VOCABULARY, base + foreign, f"expected ids in [0, {size_limit}), got {got}"
        last = self._scan.lasts[row]
        return end_fault(self._grammar.end_ids, base + size - 1, last, completion, earlier=self._earlier)

    def _no_tail(self, row: int) -> Fault:
        prompt, wanted = self._prompts.row(row), self._grammar.default.ids
        at = max(prompt.size - wanted.size, 0)
        expected = f"expected a prompt that ends with {wanted.tolist()}, got {prompt[at:].tolist()}"
        return Code.PROMPT_MISMATCH, at, expected

    def _told(self, row: int, code: str, offset: int, detail: str) -> Verdict:
        """Return a verdict whose segments are only prompt and unknown."""
        base, length = self._bases[row], self._bases[row] + self._sizes[row]
        parts = [Segment("prompt", 0, base), Segment("unknown", base, length)]
        return Verdict(code, offset, tuple(part for part in parts if part.start < part.stop), detail)

    def shapes(self, settled: Collection[int]) -> Iterable[list[int]]:
        """Return the other rows, those together whose walks through the grammar are the same."""
        scan = self._scan
        groups: dict[tuple[int, bytes, bytes, bool], list[int]] = {}
        for row in range(len(self._completions)):
            if row not in settled:
                low, high = scan.bounds[row], scan.bounds[row + 1]
                gaps = scan.gaps[low + row : high + row + 1]
                key = scan.tails[row], scan.marks[low:high], gaps, scan.loops[row] >= 0
                groups.setdefault(key, []).append(row)
        return groups.values()

    def read(self, rows: list[int]) -> Iterator[tuple[int, Verdict]]:
        """Return the verdicts of rows of one shape, by row."""
        walk = self._walk(rows[0])
        code, offset, detail = walk.result()
        if code in _SHAREABLE and walk.shareable:
            yield from zip(rows, self._filled(rows, code, detail, walk.segments), strict=True)
            return
        for row in rows:
            if row != rows[0]:
                walk = self._walk(row)
                code, offset, detail = walk.result()
            base = self._bases[row]
            segments = [Segment(kind, base + start, base + stop) for kind, start, stop in walk.segments]
            tiles = (Segment("prompt", 0, base), *segments)
            yield row, Verdict(code, offset if offset < 0 else base + offset, tiles, detail)

    def _walk(self, row: int) -> Walk:
        scan, low, high = self._scan, self._scan.bounds[row], self._scan.bounds[row + 1]
        walk = Walk(self._grammar, self._outputs.row(row), self._grammar.tails[scan.tails[row]].mode)
        walk.read(scan.positions[low:high].tolist(), list(scan.marks[low:high]))
        if walk.fault is None and scan.loops[row] >= 0:
            walk.fail(Code.REPETITION, scan.loops[row], "the output ends in a loop")
        return walk

    def _filled(
        self, rows: list[int], code: Code, detail: str, walked: Sequence[tuple[str, int, int]]
    ) -> Iterator[Verdict]:
        """Return the verdicts of rows that all walk as the first did, whose segments are given."""
        bases = np.array(self._bases, np.int64)[rows]
        ends = bases + np.array(self._sizes, np.int64)[rows]
        lows = np.array(self._scan.bounds, np.int64)[rows]
        places = {0: bases, self._sizes[rows[0]]: ends}
        for number in range(self._scan.bounds[rows[0] + 1] - int(lows[0])):
            at = self._scan.positions[lows + number]
            places |= {int(at[0]) + 1: bases + at + 1, int(at[0]): bases + at}
        columns = [map(_segment, zip(repeat("prompt"), repeat(0), bases.tolist()))]
        for kind, start, stop in walked:
            columns.append(map(_segment, zip(repeat(kind), places[start].tolist(), places[stop].tolist())))
        offsets = repeat(-1) if code in CANONICAL else ends.tolist()
        return map(Verdict, repeat(code), offsets, zip(*columns, strict=True), repeat(detail))
