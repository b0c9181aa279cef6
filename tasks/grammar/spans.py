"""Where in somebody's sequence the model's own turns lie: read off its loss mask and the job's prompt tails.

A mask need not be the turns themselves. Ours may leave kinds of ids out, take the template's opener in, or
lie where a trainer's shift looks (`tasks/export/masks.py`). A turn is believed where one explains the
mask to the id. Any other mask is taken by its word, so that one beside its turn is a fault of the row.
"""

from collections.abc import Iterator

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tasks.grammar.check import bare_completion, check_row
from tasks.grammar.grammar import Grammar, Tail
from tasks.rows.records import Ids
from tasks.rows.verdicts import CANONICAL, CUT

Span = tuple[int, int]
Mask = NDArray[np.bool_]

SHIFTS = (0, 1, 2)
"""How far in front of the id that it is about a mask's position may lie; a shifted one lacks the first id."""


def spans_of(grammar: Grammar, ids: Ids, mask: Mask | None, prompt_length: int | None) -> list[Span]:
    """Return [start, stop) of every output in a sequence, in order, at least one.

    Args:
        grammar: of the tokenizer that the data is said to be of.
        ids: int32[n].
        mask: bool[n], None for none.
        prompt_length: where the first output starts, None for unknown.
    """
    if mask is None or not mask.any():
        return [(ids.size if prompt_length is None else prompt_length, ids.size)]
    turns = _Turns(grammar, ids)
    explained = (found for shift in SHIFTS if (found := turns.explain(mask, shift)) is not None)
    spans = next(explained, None) or turns.as_masked(mask)
    if prompt_length is not None and prompt_length not in [start for start, _ in spans]:
        spans.append((prompt_length, turns.stop_of(prompt_length)))
    return sorted(spans)


class _Turns:
    """The places of one sequence where a turn may start and where one ends."""

    def __init__(self, grammar: Grammar, ids: Ids) -> None:
        self._grammar, self._ids = grammar, ids
        self._ends = np.flatnonzero(np.isin(ids, sorted(grammar.end_ids)))
        self._starts: dict[int, int] = {}
        for tail in grammar.tails:
            size, opener = tail.ids.size, _opener(grammar, tail)
            if 0 < size <= ids.size:
                found = (sliding_window_view(ids, size) == tail.ids).all(axis=1)
                self._starts |= dict.fromkeys((np.flatnonzero(found) + size).tolist(), opener) | self._starts

    def stop_of(self, start: int) -> int:
        """Return where a turn that starts here is over: behind its end id, or where the sequence is."""
        at = int(np.searchsorted(self._ends, start))
        return int(self._ends[at]) + 1 if at < self._ends.size else self._ids.size

    def explain(self, mask: Mask, shift: int) -> list[Span] | None:
        """Return the turns of which this mask is one of ours, moved `shift` left; None if it is not."""
        learnt = np.zeros_like(mask)
        learnt[shift:] = mask[: mask.size - shift]
        if mask[mask.size - shift :].any() and shift:
            return None
        spans: list[Span] = []
        labels = np.flatnonzero(learnt)
        while labels.size:
            at = spans[-1][1] if spans else 0
            turn = next((t for t in self._around(int(labels[0]), at) if self._fits(t, learnt, shift)), None)
            if turn is None:
                return None
            spans.append(turn)
            labels = labels[labels >= turn[1]]
        return spans

    def as_masked(self, mask: Mask) -> list[Span]:
        """Return the runs of a mask as outputs; one that starts where a turn does ends no earlier than it."""
        edges = np.flatnonzero(np.diff(mask, prepend=False, append=False)).reshape(-1, 2)
        spans: list[Span] = []
        for start, stop in edges.tolist():
            if not spans or start >= spans[-1][1]:
                spans.append((start, max(stop, self.stop_of(start)) if start in self._starts else stop))
        return spans

    def _around(self, label: int, behind: int) -> Iterator[Span]:
        """Yield the turns that may hold a position: a tail's words may stand in prompts and outputs, too."""
        for start in sorted(self._starts):
            if start >= behind and start - self._starts[start] <= label < self.stop_of(start):
                yield start, self.stop_of(start)

    def _fits(self, turn: Span, learnt: Mask, shift: int) -> bool:
        """Return whether each kind of a turn's ids is learnt as a whole or not at all."""
        start, stop = turn
        opener = self._starts[start]
        alone = opener == 1 and shift > 0 and bool(learnt[start])  # it is the id that is lacking
        first = start - opener if alone or learnt[start - opener : start].any() else start
        if shift == 0 and first == start and learnt[start:stop].all():
            return True
        bare = bare_completion(self._grammar, "", self._ids[:start], self._ids[start:stop])
        verdict = check_row(self._grammar, bare)
        if verdict.code not in CANONICAL | CUT or (shift and learnt[first]):
            return False
        made = [(part.start, part.stop) for part in verdict.segments if part.kind != "prompt"]
        parts = [learnt[max(at, first + bool(shift)) : end] for at, end in [(first, start), *made]]
        return all(part.all() or not part.any() for part in parts)


def _opener(grammar: Grammar, tail: Tail) -> int:
    """Return how many ids at the end of a prompt are an opener that the template wrote."""
    ids, opener = tail.ids.tolist(), list(grammar.opener_ids)
    starts = [at for at in range(len(ids)) if ids[at : at + len(opener)] == opener] if opener else []
    return len(ids) - starts[-1] if starts and tail.mode == "open" else 0
