"""Parquet bytes of a batch's files back into columns, with every claim of the schema checked (pure)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.dataset.shard import (
    FREQUENCIES_SCHEMA,
    PROVENANCE_SCHEMA,
    REJECTED_SCHEMA,
    SHARD_SCHEMA,
    ShardRows,
)
from tasks.errors import DataError
from tasks.rows.records import Ragged, Segment

_MAY_BE_NULL = frozenset({"matched_stop"})


def decode_shard(data: bytes, where: str = "shard") -> ShardRows:
    """Return the rows of a shard.

    Raises:
        DataError: not Parquet, another schema, a null, or a prompt longer than its sequence.
    """
    return rows_of(_table(data, SHARD_SCHEMA, where), where)


def decode_rejected(data: bytes, where: str = "rejected") -> ShardRows:
    """Return the rows of a rejected file; see `decode_shard`."""
    return rows_of(_table(data, REJECTED_SCHEMA, where), where)


def decode_provenance(data: bytes, where: str = "provenance") -> list[dict[str, Any]]:
    """Return one dict a row, `facts` parsed."""
    rows: list[dict[str, Any]] = _table(data, PROVENANCE_SCHEMA, where).to_pylist()
    for row in rows:
        row["facts"] = orjson.loads(row["facts"])
    return rows


def decode_frequencies(data: bytes, where: str = "frequencies") -> dict[int, int]:
    """Return the count of each id."""
    table = _table(data, FREQUENCIES_SCHEMA, where)
    return dict(zip(table["id"].to_pylist(), table["count"].to_pylist(), strict=True))


def _table(data: bytes, schema: pa.Schema, where: str) -> pa.Table:
    try:
        # In this thread alone: a thread of pyarrow's that lets go of a Python object while the interpreter
        # ends aborts the process, and the command's exit status is lost.
        table = pq.read_table(pa.BufferReader(data), use_threads=False, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{where}: expected a Parquet file, got {error}") from error
    check_columns(table.schema, schema, where)
    for name in schema.names:
        if table[name].null_count and name not in _MAY_BE_NULL:
            raise DataError(f"{where}: expected no null in {name}, got {table[name].null_count}")
    return table.combine_chunks()


def check_columns(found: pa.Schema, schema: pa.Schema, where: str) -> None:
    """Raise DataError unless a file's schema is the one that is expected."""
    if not found.remove_metadata().equals(schema):
        raise DataError(f"{where}: expected columns {_columns(schema)}, got {_columns(found)}")


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _ragged(column: pa.ChunkedArray) -> Ragged:
    lists = column.combine_chunks()
    if isinstance(lists, pa.ChunkedArray):
        lists = lists.chunk(0) if lists.num_chunks else pa.array([], column.type)
    offsets = np.asarray(lists.offsets).astype(np.int64)
    ids = np.asarray(lists.values)[offsets[0] : offsets[-1]].astype(np.int32)
    return Ragged(np.ascontiguousarray(ids), offsets - offsets[0])


def rows_of(table: pa.Table, where: str) -> ShardRows:
    """Return the rows of a table in a schema of this file; see `decode_shard`."""
    try:
        sequences = _ragged(table["input_ids"])
    except ValueError as error:
        raise DataError(f"{where}: input_ids: {error}") from error
    prompts = table["prompt_length"].to_numpy().astype(np.int32)
    bad = np.flatnonzero((prompts < 0) | (prompts > sequences.lengths))
    if bad.size:
        row = int(bad[0])
        raise DataError(
            f"{where}, row {row}: expected prompt_length in [0, {sequences.lengths[row]}], got {prompts[row]}"
        )
    rejected = "verdict_offset" in table.schema.names
    return ShardRows(
        row_ids=tuple(table["row_id"].to_pylist()),
        sequences=sequences,
        prompt_lengths=prompts,
        segments=_segments(table["segments"].to_pylist()),
        finish_reasons=tuple(table["finish_reason"].to_pylist()),
        matched_stops=tuple(table["matched_stop"].to_pylist()),
        verdicts=tuple(table["verdict"].to_pylist()),
        turns=table["turn"].to_numpy().astype(np.int16),
        samples=table["sample"].to_numpy().astype(np.int16),
        extends=table["extends_previous"].to_numpy(),
        metadata=tuple(table["metadata"].to_pylist()),
        offsets=table["verdict_offset"].to_numpy().astype(np.int32) if rejected else None,
        details=tuple(table["detail"].to_pylist()) if rejected else (),
        replies=tuple(table["reply"].to_pylist()) if rejected else (),
    )


def _segments(rows: Sequence[Sequence[dict[str, Any]]]) -> tuple[tuple[Segment, ...], ...]:
    return tuple(tuple(Segment(s["kind"], s["start"], s["stop"]) for s in row) for row in rows)
