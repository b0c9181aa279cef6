"""What is seen of a whole batch at once: where ids mean something, tails, echoes, loops."""

from collections.abc import Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from tasks.grammar.grammar import Grammar
from tasks.grammar.states import Symbol
from tasks.rows.records import Completion, Ids, Ragged

CHUNK = 1 << 18
"""Ids looked at together: their temporaries stay in the cache."""

ECHO = 5
"""SGLang 0.5.1 to 0.5.4 put up to 5 ids of the prompt's tail in front of the output."""

LOOP_PERIOD = 32
LOOP_SPAN = {"length": 128, "stop": 512}
"""A tail is a loop when it repeats with a period of at most 32 ids over this many ids, by finish reason.

Answers that stop by themselves may well hold a long ruler or a table of zeros, so they get more room.
"""

WHOLE_IDS, WHOLE_REPEATS, WHOLE_HEAD = 16, 8, 8
"""A cut answer is a loop at any length where nothing else is in it: one period, at least 8 times and over at
least 16 ids, behind a head of at most one id in 8. Of 82,000 cuts at 16 to 159 ids of 958 prompts and answers
that people wrote, those of one text are: U+0326 five hundred times."""

ENDED_IDS = 32
"""An answer that ended by itself and is one id so often is a loop: people do ask for ten zeros."""

LONG_GAP = 16
"""More ids than this between two control ids are text without looking: models do not pad so far."""

EMPTY, BLANK, TEXT = 0, 1, 2
"""What stands between two control ids."""


@attrs.frozen(slots=True, eq=False)
class Scan:
    """One batch at a glance; events are control ids, in row order.

    Args:
        positions: int64[events]: per event its index into its row's output.
        marks: per event its `Symbol`, as bytes.
        bounds: row i's events are [bounds[i], bounds[i + 1]).
        gaps: EMPTY, BLANK or TEXT in front of each event and behind a row's last: row i's are
            [bounds[i] + i, bounds[i + 1] + i + 1), as bytes.
        foreign: per row the index of its first output id outside the vocabulary, -1 for none.
        prompt_foreign: the same of its prompt.
        tails: per row which of the grammar's tails its prompt ends with, -1 for none.
        echoes: per row how many ids of the prompt's tail its output begins with.
        loops: per row where the loop that ends it is first seen, -1 for none.
        lasts: per row its last output id, -1 where there is none.
    """

    positions: NDArray[np.int64]
    marks: bytes
    bounds: list[int]
    gaps: bytes
    foreign: list[int]
    prompt_foreign: list[int]
    tails: list[int]
    echoes: list[int]
    loops: list[int]
    lasts: list[int]


def scan_batch(
    grammar: Grammar,
    inputs: Ragged,
    outputs: Ragged,
    completions: Sequence[Completion],
    *,
    earlier: bool = False,
) -> Scan:
    """Look at a batch; see `Scan`, and `check_rows` for `earlier`."""
    lasts, finishes = _lasts(outputs), [completion.finish_reason for completion in completions]
    if not earlier:
        finishes = [
            "stop" if last in grammar.end_ids else finish
            for last, finish in zip(lasts, finishes, strict=True)
        ]
    found = _outside(outputs.ids, *grammar.plain_run)
    ids = outputs.ids[found]
    known = (ids >= 0) & (ids < grammar.size)
    foreign = found[~known]
    found, marks = found[known], grammar.symbols[ids[known]]
    meant = marks != Symbol.TEXT
    events, marks = found[meant], marks[meant]
    bounds = np.searchsorted(events, outputs.offsets)
    starts = np.repeat(outputs.offsets[:-1], np.diff(bounds))
    return Scan(
        positions=events - starts,
        marks=marks.tobytes(),
        bounds=bounds.tolist(),
        gaps=_gaps(grammar, outputs, events, bounds),
        foreign=_first(foreign, outputs),
        prompt_foreign=_first(np.flatnonzero(inputs.ids.view(np.uint32) >= grammar.size), inputs),
        tails=_tails(grammar, inputs),
        echoes=_echoes(grammar, inputs, outputs),
        loops=_loops(outputs, finishes, short=not earlier),
        lasts=lasts,
    )


def _outside(ids: Ids, start: int, stop: int) -> NDArray[np.intp]:
    """Return where ids are outside [start, stop), the longest run of ordinary ids: one compare an id."""
    wide = ids.view(np.uint32)
    low, room = np.uint32(start), np.uint32(stop - start)
    parts = [np.flatnonzero((wide[at : at + CHUNK] - low) >= room) + at for at in range(0, wide.size, CHUNK)]
    return np.concatenate(parts) if parts else np.zeros(0, np.intp)


def _first(places: NDArray[np.intp], rows: Ragged) -> list[int]:
    if places.size == 0:
        return [-1] * len(rows)
    at = np.searchsorted(places, rows.offsets)
    return [
        int(places[low]) - start if low < high else -1
        for low, high, start in zip(at[:-1], at[1:], rows.offsets[:-1].tolist(), strict=True)
    ]


def _lasts(rows: Ragged) -> list[int]:
    lasts = np.full(len(rows), -1, np.int64)
    some = np.diff(rows.offsets) > 0
    lasts[some] = rows.ids[rows.offsets[1:][some] - 1]
    last_ids: list[int] = lasts.tolist()
    return last_ids


def _gaps(grammar: Grammar, outputs: Ragged, events: NDArray[np.intp], bounds: NDArray[np.intp]) -> bytes:
    """Return what stands in front of each event and behind the last one of each row."""
    rows = len(outputs)
    closing = bounds[1:] + np.arange(rows)  # place of each row's last gap among all gaps
    stops = np.empty(events.size + rows, np.int64)
    starts = np.empty(events.size + rows, np.int64)
    inner = np.ones(stops.size, np.bool_)
    inner[closing] = False
    stops[inner], stops[closing] = events, outputs.offsets[1:]
    opening = bounds[:-1] + np.arange(rows)
    later = np.ones(stops.size, np.bool_)
    later[opening] = False
    starts[later], starts[opening] = events + 1, outputs.offsets[:-1]
    lengths = stops - starts
    kinds = np.full(stops.size, TEXT, np.uint8)
    kinds[lengths == 0] = EMPTY
    for gap in np.flatnonzero((lengths > 0) & (lengths <= LONG_GAP)).tolist():
        ids = outputs.ids[starts[gap] : stops[gap]]
        if grammar.blank[np.clip(ids, 0, grammar.size - 1)].all():
            kinds[gap] = BLANK
    return kinds.tobytes()


def _tails(grammar: Grammar, inputs: Ragged) -> list[int]:
    found = np.full(len(inputs), -1)
    for number, tail in enumerate(grammar.tails):
        size = tail.ids.size
        rows = np.flatnonzero((found < 0) & (inputs.lengths > size))
        window = inputs.ids[inputs.offsets[1:][rows][:, None] + np.arange(-size, 0)]
        found[rows[(window == tail.ids).all(axis=1)]] = number
    return [int(number) for number in found]


def _echoes(grammar: Grammar, inputs: Ragged, outputs: Ragged) -> list[int]:
    """One id alone counts only if it is ordinary text.

    White space begins many answers by itself, and a control id is judged by the grammar.
    """
    found = np.zeros(len(outputs), np.int64)
    shorter = np.minimum(inputs.lengths, outputs.lengths)
    for count in range(ECHO, 0, -1):
        rows = np.flatnonzero((found == 0) & (shorter >= count))
        ends = inputs.ids[inputs.offsets[1:][rows][:, None] + np.arange(-count, 0)]
        heads = outputs.ids[outputs.offsets[:-1][rows][:, None] + np.arange(count)]
        same = (ends == heads).all(axis=1)
        if count == 1:
            single = np.clip(heads[:, 0], 0, grammar.size - 1)
            same &= (grammar.symbols[single] == Symbol.TEXT) & ~grammar.blank[single]
        found[rows[same]] = count
    return [int(count) for count in found]


def _loops(outputs: Ragged, finishes: Sequence[str], *, short: bool) -> list[int]:
    """Return per row where the loop that ends it is first seen, -1 for none; `short` ones count, too."""
    found = [-1] * len(finishes)
    lengths = outputs.lengths
    for finish, span in LOOP_SPAN.items():
        ended = int(finish == "stop")
        least = WHOLE_IDS if short else span + LOOP_PERIOD + ended
        rows = [row for row in np.flatnonzero(lengths >= least).tolist() if finishes[row] == finish]
        long = [row for row in rows if lengths[row] >= span + LOOP_PERIOD + ended]
        stops = outputs.offsets[1:][long] - ended
        for row, stop in zip(_periodic(outputs.ids, stops, span, long), stops, strict=True):
            if row >= 0:
                found[row] = int(stop) - span - int(outputs.offsets[row])
        for row in rows if short else ():
            if found[row] < 0:
                ids = outputs.row(row)
                found[row] = _one_id(ids[:-1]) if ended else _whole(ids)
    return found


def _one_id(ids: Ids) -> int:
    """Return 0 where a whole answer is one id over and over, -1 where not."""
    same = ids.size >= ENDED_IDS and ids[0] == ids[-1] == ids[-2] and bool((ids == ids[-1]).all())
    return 0 if same else -1


def _whole(ids: Ids) -> int:
    """Return where the loop begins that a whole cut answer is, but for a short head; -1 where it is none."""
    if ids.size >= LOOP_SPAN["length"] + LOOP_PERIOD:
        return -1  # its tail was looked at
    tail = ids[-WHOLE_REPEATS:].tolist()
    for period in range(1, ids.size // WHOLE_REPEATS + 1):
        if ids[-WHOLE_REPEATS - period : ids.size - period].tolist() != tail:
            continue
        other = np.flatnonzero(ids[period:] != ids[:-period])
        start = int(other[-1]) + 1 if other.size else 0
        if start * WHOLE_HEAD <= ids.size and ids.size - start >= max(WHOLE_IDS, WHOLE_REPEATS * period):
            return start
    return -1


def _periodic(ids: Ids, stops: NDArray[np.int64], span: int, rows: list[int]) -> list[int]:
    """Return per row its number if its last `span` ids repeat with a short period, -1 if not."""
    if not rows:
        return []
    last = ids[stops - 1]
    hits = np.zeros(len(rows), np.bool_)
    for period in range(1, LOOP_PERIOD + 1):
        maybe = np.flatnonzero(~hits & (ids[stops - 1 - period] == last))
        for place in maybe.tolist():
            stop = stops[place]
            near = ids[stop - 8 : stop], ids[stop - 8 - period : stop - period]
            if (near[0] == near[1]).all():
                recent = ids[stop - span : stop]
                hits[place] = (recent == ids[stop - span - period : stop - period]).all()
    return [row if hit else -1 for row, hit in zip(rows, hits.tolist(), strict=True)]
