"""The frozen columnar records that the rooms hand to each other.

All are slotted `attrs` classes: Prefect walks lists, dicts, dataclasses and pydantic fields of task
arguments element by element, and leaves these alone. Many rows are columns: one `int32` array of ids with
`int64` offsets, never a list of lists. Everything is checked where it is built.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

import attrs
import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
Offsets = NDArray[np.int64]

MAX_ID = 2**31 - 1
"""Largest id an int32 column can hold; vocabularies in use are below 2**18."""


def as_ids(values: Iterable[int] | NDArray[Any]) -> Ids:
    """Return `values` as a contiguous int32[n] array.

    Raises:
        ValueError: when a value is not an integer within [0, 2**31).
    """
    wide = np.asarray(values if isinstance(values, np.ndarray) else list(values))
    if wide.size == 0:
        return np.zeros(0, np.int32)
    if wide.ndim != 1 or not np.issubdtype(wide.dtype, np.integer):
        raise ValueError(f"token ids must be a flat list of integers, got {wide.dtype} of shape {wide.shape}")
    low, high = int(wide.min()), int(wide.max())
    if low < 0 or high > MAX_ID:
        raise ValueError(f"token ids must be in [0, {MAX_ID}], got {low if low < 0 else high}")
    return np.ascontiguousarray(wide, dtype=np.int32)


def _check_ragged(ids: Ids, offsets: Offsets) -> None:
    if ids.dtype != np.int32 or ids.ndim != 1:
        raise ValueError(f"ids must be int32[n], got {ids.dtype} of shape {ids.shape}")
    if offsets.dtype != np.int64 or offsets.ndim != 1 or offsets.size == 0:
        raise ValueError(f"offsets must be int64[rows+1], got {offsets.dtype} of shape {offsets.shape}")
    if offsets[0] != 0 or offsets[-1] != ids.size:
        raise ValueError(f"offsets must run from 0 to {ids.size}, got {offsets[0]} to {offsets[-1]}")
    if np.any(np.diff(offsets) < 0):
        raise ValueError(f"offsets must not fall, got a step back at row {int(np.argmin(np.diff(offsets)))}")


@attrs.frozen(slots=True, eq=False)
class Ragged:
    """Rows of token ids as one flat array: row i is `ids[offsets[i]:offsets[i+1]]`.

    Args:
        ids: int32[n].
        offsets: int64[rows+1], first 0, last n, never falling.

    Raises:
        ValueError: when a dtype, shape or offset breaks this.
    """

    ids: Ids
    offsets: Offsets

    def __attrs_post_init__(self) -> None:
        _check_ragged(self.ids, self.offsets)

    @classmethod
    def from_rows(cls, rows: Sequence[Ids]) -> Self:
        """Concatenate int32[*] rows."""
        lengths = np.fromiter((row.size for row in rows), np.int64, len(rows))
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        flat = np.concatenate(rows) if rows else np.zeros(0, np.int32)
        return cls(np.ascontiguousarray(flat, np.int32), offsets)

    def __len__(self) -> int:
        return self.offsets.size - 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ragged):
            return NotImplemented
        return np.array_equal(self.ids, other.ids) and np.array_equal(self.offsets, other.offsets)

    __hash__ = None  # type: ignore[assignment]  # arrays can change; a record of them is no dictionary key

    @property
    def lengths(self) -> Offsets:
        """int64[rows]: ids per row."""
        return np.diff(self.offsets)

    def row(self, index: int) -> Ids:
        """Return row `index` as a view, int32[length]."""
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    def take(self, indices: Sequence[int] | NDArray[np.intp]) -> Self:
        """Return the rows at `indices`, in that order."""
        return type(self).from_rows([self.row(int(i)) for i in indices])


@attrs.frozen(slots=True, eq=False)
class Request:
    """One row, ready to be sent to a server.

    Args:
        row_id: unique in the job, `<source>:<record id>#t<turn>~s<sample>`.
        input_ids: int32[n], n >= 1: exactly what is sent.
        max_new_tokens: cap for this row, >= 1.
        seed: non-negative, below 2**63: hash of the job's seed and the row id.
        turn: zero-based turn of its conversation.
        sample: zero-based sample of its prompt.
        affinity: rows with equal affinity prefer one server (prefix cache).
        sampling: fields that differ from the job's resolved sampling for this row (a mixture's choice).
        logprobs: whether the log probabilities of its output ids are asked for; they go to its facts.
    """

    row_id: str
    input_ids: Ids
    max_new_tokens: int
    seed: int
    turn: int = 0
    sample: int = 0
    affinity: str = ""
    sampling: dict[str, Any] = attrs.field(factory=dict)
    logprobs: bool = False

    def __attrs_post_init__(self) -> None:
        if self.input_ids.dtype != np.int32 or self.input_ids.size == 0:
            raise ValueError(f"{self.row_id}: input_ids must be int32[n >= 1]")
        if self.max_new_tokens < 1:
            raise ValueError(f"{self.row_id}: max_new_tokens must be >= 1, got {self.max_new_tokens}")


@attrs.frozen(slots=True, eq=False)
class Completion:
    """What a server answered for a row, verbatim, or why the row was never made.

    Args:
        row_id: the request's.
        input_ids: int32[n]: what was sent (empty when nothing was).
        output_ids: int32[m]: what came back, untouched.
        finish_reason: `stop`, `length`, `abort`, or `unsent` when no server made it.
        matched_stop: the stop id that ended it; None when none did.
        code: why it was never made (a `Code` value), "" for a served row.
        code_offset: where, -1 if nowhere.
        detail: one sentence for a person; "" for a served row.
        facts: the server's own account and ours, JSON-able: counts, server, version, weight version,
            attempts, latency, times. Goes to the provenance file, never into the shard.
    """

    row_id: str
    input_ids: Ids
    output_ids: Ids
    finish_reason: str
    matched_stop: int | None = None
    code: str = ""
    code_offset: int = -1
    detail: str = ""
    facts: dict[str, Any] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        for name, ids in (("input_ids", self.input_ids), ("output_ids", self.output_ids)):
            if ids.dtype != np.int32 or ids.ndim != 1:
                raise ValueError(
                    f"{self.row_id}: {name} must be int32[n], got {ids.dtype} of shape {ids.shape}"
                )
        if bool(self.code) != (self.finish_reason == "unsent"):
            raise ValueError(f"{self.row_id}: a code belongs to an unsent row, and only to one")

    @property
    def sent(self) -> bool:
        """Whether a server answered it."""
        return self.finish_reason != "unsent"


class Segment(NamedTuple):
    """A named half-open range [start, stop) of a row's `input_ids`; a tuple, for there are many of them."""

    kind: str
    start: int
    stop: int


@attrs.frozen(slots=True, eq=False)
class Verdict:
    """What the grammar says of one row.

    Args:
        code: a `Code` value.
        offset: index into prompt + output where the grammar broke; -1 for canonical rows.
        segments: named half-open ranges that tile the whole sequence.
        detail: one sentence for a person: expected and got; "" for canonical rows.
    """

    code: str
    offset: int
    segments: tuple[Segment, ...]
    detail: str = ""


@attrs.frozen(slots=True, eq=False)
class CheckedBatch:
    """All rows of one batch in source order, each with its verdict.

    Args:
        batch: index of the batch.
        row_ids: rows names, unique.
        inputs: prompt ids per row.
        outputs: output ids per row.
        verdicts: one per row.
        accepted: bool[rows]: whether policy accepts the row.
        completions: per row its completion (finish reason, facts).
        turns: int16[rows].
        samples: int16[rows].
        metadata: per row the source record's other fields as JSON text.
        extends: bool[rows]: whether the prompt begins with prompt and output of the turn before it.
    """

    batch: int
    row_ids: tuple[str, ...]
    inputs: Ragged
    outputs: Ragged
    verdicts: tuple[Verdict, ...]
    accepted: NDArray[np.bool_]
    completions: tuple[Completion, ...]
    turns: NDArray[np.int16]
    samples: NDArray[np.int16]
    metadata: tuple[str, ...]
    extends: NDArray[np.bool_] = attrs.field(
        default=attrs.Factory(lambda self: np.zeros(len(self.row_ids), np.bool_), takes_self=True)
    )

    def __attrs_post_init__(self) -> None:
        rows = len(self.row_ids)
        for name in (
            "inputs",
            "outputs",
            "verdicts",
            "accepted",
            "extends",
            "completions",
            "turns",
            "samples",
            "metadata",
        ):
            if len(getattr(self, name)) != rows:
                raise ValueError(f"batch {self.batch}: {rows} rows but {len(getattr(self, name))} {name}")
        if len(set(self.row_ids)) != rows:
            raise ValueError(f"batch {self.batch}: row ids repeat")

    def __len__(self) -> int:
        return len(self.row_ids)
