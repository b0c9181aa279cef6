"""What is counted over the rows that a report looks at (pure).

Memory is bounded by the sample (`sample.py`): lengths are counted by value, rows keep two numbers each.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray

from tasks.dataset.shard import ShardRows
from tasks.rows.records import Ids, Segment
from tasks.rows.row_id import split_row_id
from tasks.rows.verdicts import CUT

LENGTHS: Final = ("prompt", "reasoning", "content")
"""Segments whose lengths get a histogram."""

ANSWER: Final = ("closer", "content", "tool_calls")
"""What follows the reasoning: a drafter that sees little of it is slow where people wait."""

ANSWER_FLOOR: Final = 0.20
"""Below this share of the supervised ids a warning is shown (issue 8)."""

PREFIX_IDS: Final = 8
"""Ids of an answer's beginning that are compared: long enough to name a habit, short enough to repeat."""

SHOWN_ROWS: Final = 3
SHOWN_PER_CODE: Final = 2
SHOWN_REJECTED: Final = 20
SHOWN_IDS: Final = 4096
"""Rows that the page shows, and the longest of them in ids."""

RETOKENIZED_ROWS: Final = 500
RETOKENIZED_IDS: Final = 1_000_000
"""At most so many outputs are decoded and encoded again: about a second."""


@attrs.define(slots=True)
class SourceCount:
    """The rows of one source; token counts are of its accepted rows."""

    rows: int = 0
    accepted: int = 0
    cut: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    supervised: Counter[str] = attrs.field(factory=Counter)

    @property
    def rejected(self) -> int:
        """Rows that are in no shard."""
        return self.rows - self.accepted


@attrs.frozen(slots=True, eq=False)
class Shown:
    """A row that the page shows, its ids cut at `SHOWN_IDS`."""

    row_id: str
    verdict: str
    detail: str
    offset: int
    ids: Ids
    length: int
    segments: tuple[Segment, ...]


@attrs.define(slots=True, eq=False)
class Measured:
    """Counts over rows; `add` one file at a time.

    Args:
        size: ids are counted below it.
        sources: by name.
        lengths: of accepted rows, by segment kind: length in ids to rows.
        answers: lengths of whole answers: of the accepted rows, and of all that came. Where what is long is
            lost (a time limit, a sick server), the first are shorter than the second.
        finish: finish reasons of all rows.
        frequencies: int64[size]: how often each id occurs in accepted outputs.
        prefixes: first `PREFIX_IDS` ids of accepted outputs, as bytes of int32.
        shown: accepted rows to show.
        rejected: rejected rows to show, by code.
        outputs: (row id, output ids) to decode and encode again.
        timed: per server (finished at, seconds, ids) of its rows, in seconds since the epoch.
        versions: per server the versions it answered with.
        unreadable: what could not be read, one sentence a file.
    """

    size: int
    sources: dict[str, SourceCount] = attrs.field(factory=dict)
    lengths: dict[str, Counter[int]] = attrs.field(factory=lambda: {kind: Counter() for kind in LENGTHS})
    answers: tuple[Counter[int], Counter[int]] = attrs.field(factory=lambda: (Counter(), Counter()))
    finish: Counter[str] = attrs.field(factory=Counter)
    frequencies: NDArray[np.int64] = attrs.field(init=False)
    prefixes: Counter[bytes] = attrs.field(factory=Counter)
    shown: list[Shown] = attrs.field(factory=list)
    rejected: dict[str, list[Shown]] = attrs.field(factory=dict)
    outputs: list[tuple[str, Ids]] = attrs.field(factory=list)
    timed: dict[str, list[tuple[float, float, int]]] = attrs.field(factory=dict)
    versions: dict[str, set[str]] = attrs.field(factory=dict)
    unreadable: list[str] = attrs.field(factory=list)
    _output_ids: int = 0

    def __attrs_post_init__(self) -> None:
        self.frequencies = np.zeros(self.size, np.int64)

    @property
    def rows(self) -> int:
        """Rows that were looked at."""
        return sum(source.rows for source in self.sources.values())

    @property
    def supervised(self) -> Counter[str]:
        """Ids that the model made in accepted rows, by segment kind."""
        return sum((source.supervised for source in self.sources.values()), Counter())

    def add(self, rows: ShardRows, order: Sequence[int]) -> None:
        """Count a shard or a rejected file.

        Args:
            rows: of the file.
            order: permutation of its rows: which are shown and encoded again first.
        """
        accepted = rows.offsets is None
        if accepted:
            made = np.concatenate([rows.outputs(row) for row in range(len(rows))])
            self.frequencies += np.bincount(made[made < self.size], minlength=self.size)
        for row, row_id in enumerate(rows.row_ids):
            source = self.sources.setdefault(split_row_id(row_id)[0], SourceCount())
            source.rows += 1
            self.finish[rows.finish_reasons[row]] += 1
            if made_ids := rows.outputs(row).size:
                self.answers[0][made_ids] += accepted
                self.answers[1][made_ids] += 1
            if accepted:
                self._add_accepted(source, rows, row)
        for row in order:
            if accepted:
                self._keep_output(rows, row)
                if len(self.shown) < SHOWN_ROWS and rows.sequences.row(row).size <= SHOWN_IDS:
                    self.shown.append(_shown(rows, row))
            elif sum(map(len, self.rejected.values())) < SHOWN_REJECTED:
                kept = self.rejected.setdefault(rows.verdicts[row], [])
                if len(kept) < SHOWN_PER_CODE:
                    kept.append(_shown(rows, row))

    def _add_accepted(self, source: SourceCount, rows: ShardRows, row: int) -> None:
        source.accepted += 1
        source.cut += rows.verdicts[row] in CUT
        output = rows.outputs(row)
        source.prompt_tokens += int(rows.prompt_lengths[row])
        source.output_tokens += output.size
        found: Counter[str] = Counter()
        for segment in rows.segments[row]:
            found[segment.kind] += segment.stop - segment.start
        for kind in LENGTHS:
            self.lengths[kind][found[kind]] += 1
        del found["prompt"]
        source.supervised.update(found)
        self.prefixes[output[:PREFIX_IDS].tobytes()] += 1

    def _keep_output(self, rows: ShardRows, row: int) -> None:
        output = rows.outputs(row)
        if len(self.outputs) < RETOKENIZED_ROWS and self._output_ids + output.size <= RETOKENIZED_IDS:
            self._output_ids += output.size
            self.outputs.append((rows.row_ids[row], output.copy()))

    def add_provenance(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Count who made the rows of a batch, and when."""
        for row in rows:
            if row["server"]:
                made = int(row["facts"].get("completion_tokens") or 0)
                timed = self.timed.setdefault(row["server"], [])
                timed.append((row["finished_at"], row["latency_seconds"], made))
                self.versions.setdefault(row["server"], set()).add(row["server_version"])


def _shown(rows: ShardRows, row: int) -> Shown:
    ids = rows.sequences.row(row)
    segments = tuple(
        Segment(part.kind, part.start, min(part.stop, SHOWN_IDS))
        for part in rows.segments[row]
        if part.start < SHOWN_IDS
    )
    detail = rows.details[row] if rows.details else ""
    offset = int(rows.offsets[row]) if rows.offsets is not None else -1
    return Shown(
        rows.row_ids[row], rows.verdicts[row], detail, offset, ids[:SHOWN_IDS].copy(), ids.size, segments
    )
