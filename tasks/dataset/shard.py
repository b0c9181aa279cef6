"""A batch's files: `CheckedBatch` ⇄ Parquet bytes (pure).

Equal rows give equal bytes: fixed writer options, no timestamps, no server names. The bytes also hold the
writer's name and version (`created_by`), so they are compared between runs of one pyarrow version.
"""

import io
from collections.abc import Mapping
from typing import Any, Final

import attrs
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.rows.records import CheckedBatch, Completion, Ragged, Segment

_SEGMENT = pa.struct([("kind", pa.string()), ("start", pa.int32()), ("stop", pa.int32())])

SHARD_SCHEMA: Final = pa.schema(
    [
        ("row_id", pa.string()),
        ("input_ids", pa.list_(pa.int32())),
        ("prompt_length", pa.int32()),
        ("segments", pa.list_(_SEGMENT)),
        ("finish_reason", pa.string()),
        ("matched_stop", pa.int32()),
        ("verdict", pa.string()),
        ("turn", pa.int16()),
        ("sample", pa.int16()),
        ("extends_previous", pa.bool_()),
        ("metadata", pa.string()),
    ]
)
REJECTED_SCHEMA: Final = pa.schema(
    [*SHARD_SCHEMA, ("verdict_offset", pa.int32()), ("detail", pa.string()), ("reply", pa.string())]
)
PROVENANCE_SCHEMA: Final = pa.schema(
    [
        ("row_id", pa.string()),
        ("accepted", pa.bool_()),
        ("server", pa.string()),
        ("server_version", pa.string()),
        ("weight_version", pa.string()),
        ("rid", pa.string()),
        ("attempts", pa.int16()),
        ("continuations", pa.int16()),
        ("cached_tokens", pa.int32()),
        ("latency_seconds", pa.float64()),
        ("finished_at", pa.float64()),
        ("facts", pa.string()),
    ]
)
FREQUENCIES_SCHEMA: Final = pa.schema([("id", pa.int32()), ("count", pa.int64())])
SCHEMAS: Final = {
    "shard": SHARD_SCHEMA,
    "rejected": REJECTED_SCHEMA,
    "provenance": PROVENANCE_SCHEMA,
    "frequencies": FREQUENCIES_SCHEMA,
}

_GROUP_IDS: Final = 4 * 2**20
"""Row groups of about 16 MB of raw ids, at most 2,000 rows: they stream, and they compress."""

_REPEATING: Final = ("finish_reason", "verdict", "segments.list.element.kind", "server", "server_version")


def encode_shard(checked: CheckedBatch) -> bytes:
    """Return the accepted rows as the bytes of their shard."""
    rows = np.flatnonzero(checked.accepted)
    return _to_bytes(pa.table(_row_columns(checked, rows), SHARD_SCHEMA), _rows_per_group(checked, rows))


def encode_rejected(checked: CheckedBatch) -> bytes:
    """Return the other rows with code, offset, detail and the raw reply facts."""
    rows = np.flatnonzero(~checked.accepted)
    verdicts = [checked.verdicts[row] for row in rows]
    columns = _row_columns(checked, rows) | {
        "verdict_offset": [verdict.offset for verdict in verdicts],
        "detail": [verdict.detail for verdict in verdicts],
        "reply": [_json(_without_logprobs(checked.completions[row].facts)) for row in rows],
    }
    return _to_bytes(pa.table(columns, REJECTED_SCHEMA), _rows_per_group(checked, rows))


def _without_logprobs(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reply facts as a rejected file keeps them: log probabilities are provenance alone."""
    return {name: value for name, value in facts.items() if name != "logprobs"}


def _row_columns(checked: CheckedBatch, rows: NDArray[np.intp]) -> dict[str, Any]:
    sequences = [
        np.concatenate((checked.inputs.row(int(row)), checked.outputs.row(int(row)))) for row in rows
    ]
    completions = [checked.completions[row] for row in rows]
    return {
        "row_id": [checked.row_ids[row] for row in rows],
        "input_ids": id_lists(Ragged.from_rows(sequences)),
        "prompt_length": checked.inputs.lengths[rows].astype(np.int32),
        "segments": [
            [{"kind": s.kind, "start": s.start, "stop": s.stop} for s in checked.verdicts[row].segments]
            for row in rows
        ],
        "finish_reason": [completion.finish_reason for completion in completions],
        "matched_stop": [completion.matched_stop for completion in completions],
        "verdict": [str(checked.verdicts[row].code) for row in rows],
        "turn": checked.turns[rows].astype(np.int16),
        "sample": checked.samples[rows].astype(np.int16),
        "extends_previous": checked.extends[rows],
        "metadata": [checked.metadata[row] for row in rows],
    }


def id_lists(ragged: Ragged, most: int = np.iinfo(np.int32).max) -> pa.ChunkedArray:
    """Return rows of ids as Arrow lists, in as many chunks as their 32-bit offsets need: one, as a rule."""
    chunks: list[pa.Array] = []
    start, rows = 0, len(ragged)
    while start < rows or not chunks:
        begin = int(ragged.offsets[start])
        fits = int(np.searchsorted(ragged.offsets, begin + most, "right")) - 1
        stop = max(fits, min(start + 1, rows))
        offsets = (ragged.offsets[start : stop + 1] - begin).astype(np.int32)
        chunks.append(pa.ListArray.from_arrays(offsets, ragged.ids[begin : int(ragged.offsets[stop])]))
        start = stop
    return pa.chunked_array(chunks)


def _rows_per_group(checked: CheckedBatch, rows: NDArray[np.intp]) -> int:
    ids = int((checked.inputs.lengths + checked.outputs.lengths)[rows].sum())
    return max(1, min(2000, _GROUP_IDS * len(rows) // max(ids, 1)))


def encode_provenance(checked: CheckedBatch) -> bytes:
    """Return how every row of the batch came about, from the facts that serving noted."""
    named = {
        field.name: field.type for field in PROVENANCE_SCHEMA if field.name not in ("row_id", "accepted")
    }
    del named["facts"]
    columns: dict[str, Any] = {"row_id": list(checked.row_ids), "accepted": checked.accepted}
    for name, kind in named.items():
        empty: str | int = "" if kind == pa.string() else 0
        values = [completion.facts.get(name) for completion in checked.completions]
        columns[name] = [empty if value is None else value for value in values]
    columns["facts"] = [
        _json({key: value for key, value in completion.facts.items() if key not in named})
        for completion in checked.completions
    ]
    return _to_bytes(pa.table(columns, PROVENANCE_SCHEMA), 10_000)


def encode_frequencies(checked: CheckedBatch) -> bytes:
    """Return how often each id occurs in the outputs of the accepted rows."""
    accepted = checked.outputs.take(np.flatnonzero(checked.accepted))
    ids, counts = np.unique(accepted.ids, return_counts=True)
    table = pa.table({"id": ids.astype(np.int32), "count": counts.astype(np.int64)}, FREQUENCIES_SCHEMA)
    return _to_bytes(table, 1_000_000)


def _to_bytes(table: pa.Table, rows_per_group: int) -> bytes:
    sink = io.BytesIO()
    dictionary = [path for path in _REPEATING if path.split(".")[0] in table.schema.names]
    pq.write_table(
        table,
        sink,
        row_group_size=rows_per_group,
        version="2.6",
        compression="zstd",
        compression_level=3,
        use_dictionary=dictionary or False,
        write_statistics=False,
        store_schema=False,
    )
    return sink.getvalue()


def _json(value: Mapping[str, Any]) -> str:
    options = orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    return orjson.dumps(value, option=options).decode()


@attrs.frozen(slots=True, eq=False)
class ShardRows:
    """The rows of a shard or a rejected file, as columns.

    Args:
        row_ids: names.
        sequences: prompt and output ids per row.
        prompt_lengths: int32[rows].
        segments: per row.
        finish_reasons: per row.
        matched_stops: per row.
        verdicts: codes.
        turns: int16[rows].
        samples: int16[rows].
        extends: bool[rows]: whether the prompt begins with prompt and output of the turn before it.
        metadata: JSON texts.
        offsets: int32[rows] verdict offsets of a rejected file; None for a shard.
        details: of a rejected file.
        replies: JSON texts of a rejected file.
    """

    row_ids: tuple[str, ...]
    sequences: Ragged
    prompt_lengths: NDArray[np.int32]
    segments: tuple[tuple[Segment, ...], ...]
    finish_reasons: tuple[str, ...]
    matched_stops: tuple[int | None, ...]
    verdicts: tuple[str, ...]
    turns: NDArray[np.int16]
    samples: NDArray[np.int16]
    extends: NDArray[np.bool_]
    metadata: tuple[str, ...]
    offsets: NDArray[np.int32] | None = None
    details: tuple[str, ...] = ()
    replies: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.row_ids)

    def inputs(self, row: int) -> NDArray[np.int32]:
        """Return the prompt ids of a row."""
        return self.sequences.row(row)[: self.prompt_lengths[row]]

    def outputs(self, row: int) -> NDArray[np.int32]:
        """Return the output ids of a row."""
        return self.sequences.row(row)[self.prompt_lengths[row] :]

    def completion(self, row: int, facts: Mapping[str, Any] | None = None) -> Completion:
        """Return the row as what the server answered; its facts lie in the provenance file."""
        unsent = self.finish_reasons[row] == "unsent"
        return Completion(
            row_id=self.row_ids[row],
            input_ids=self.inputs(row),
            output_ids=self.outputs(row),
            finish_reason=self.finish_reasons[row],
            matched_stop=self.matched_stops[row],
            code=self.verdicts[row] if unsent else "",
            code_offset=int(self.offsets[row]) if unsent and self.offsets is not None else -1,
            detail=self.details[row] if unsent and self.details else "",
            facts=dict(facts or {}),
        )
