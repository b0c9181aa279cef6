"""Shard bytes: equal rows give equal bytes, what goes in comes out, what is not the schema is refused."""

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.dataset.shard import (
    encode_frequencies,
    encode_provenance,
    encode_rejected,
    encode_shard,
    id_lists,
)
from tasks.dataset.shard_reader import (
    decode_frequencies,
    decode_provenance,
    decode_rejected,
    decode_shard,
)
from tasks.errors import DataError
from tasks.rows.records import CheckedBatch, Completion, Ragged, Segment, Verdict, as_ids

Row = tuple[list[int], list[int], bool]


def batch_of(rows: list[Row]) -> CheckedBatch:
    """Return a checked batch with these prompts, outputs and fates."""
    completions = tuple(
        Completion(f"s:{n}#t0~s0", as_ids(a), as_ids(b), "stop", 5 if n % 2 else None, facts={"x": n})
        for n, (a, b, _) in enumerate(rows)
    )
    verdicts = tuple(
        Verdict(
            "complete" if good else "after_end",
            -1 if good else len(a),
            (Segment("prompt", 0, len(a)), Segment("content", len(a), len(a) + len(b))),
            "" if good else "expected the end, got 7",
        )
        for a, b, good in rows
    )
    return CheckedBatch(
        0,
        tuple(completion.row_id for completion in completions),
        Ragged.from_rows([completion.input_ids for completion in completions]),
        Ragged.from_rows([completion.output_ids for completion in completions]),
        verdicts,
        np.array([good for _, _, good in rows], np.bool_),
        completions,
        np.arange(len(rows), dtype=np.int16) % 3,
        np.arange(len(rows), dtype=np.int16) % 2,
        tuple(f'{{"n":{n}}}' for n in range(len(rows))),
    )


ids = st.lists(st.integers(0, 2**31 - 1), max_size=30)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(ids, ids, st.booleans()), max_size=8))
def test_rows_survive(rows: list[Row]) -> None:
    """Prompt ids, output ids and all else of a row come back exactly, in one of the two files."""
    checked = batch_of(rows)
    shard, rejected = decode_shard(encode_shard(checked)), decode_rejected(encode_rejected(checked))
    for part, accepted in ((shard, True), (rejected, False)):
        places = [n for n, row in enumerate(rows) if row[2] == accepted]
        assert part.row_ids == tuple(checked.row_ids[n] for n in places)
        for index, n in enumerate(places):
            assert part.inputs(index).tolist() == rows[n][0]
            assert part.outputs(index).tolist() == rows[n][1]
            assert part.verdicts[index] == checked.verdicts[n].code
            assert part.matched_stops[index] == checked.completions[n].matched_stop
            assert (part.turns[index], part.samples[index]) == (checked.turns[n], checked.samples[n])
            assert part.metadata[index] == checked.metadata[n]
            found = [(s.kind, s.start, s.stop) for s in part.segments[index]]
            assert found == [(s.kind, s.start, s.stop) for s in checked.verdicts[n].segments]
    assert rejected.offsets is not None
    assert rejected.offsets.tolist() == [len(a) for a, _, good in rows if not good]
    assert rejected.details == ("expected the end, got 7",) * len(rejected)


def test_equal_rows_give_equal_bytes() -> None:
    """A shard says nothing of servers, times or attempts: other facts, same bytes."""
    rows: list[Row] = [([1, 2], [3, 4], True), ([5], [6], False)]
    one, other = batch_of(rows), batch_of(rows)
    for completion in other.completions:
        completion.facts.update(server="http://elsewhere", rid="new", finished_at=2.0)
    assert encode_shard(one) == encode_shard(other)
    assert encode_frequencies(one) == encode_frequencies(other)
    assert encode_provenance(one) != encode_provenance(other)


def test_large_batches_have_several_row_groups() -> None:
    """Row groups hold at most 2,000 rows, so that a reader can stream."""
    data = encode_shard(batch_of([([1], [2, 3], True)] * 4500))
    file = pq.ParquetFile(io.BytesIO(data))
    assert [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] == [2000, 2000, 500]
    assert decode_shard(data).sequences.ids.size == 13500


def test_ids_are_plain_and_compressed() -> None:
    """The ids' column is zstd without a dictionary, as measured best."""
    column = (
        pq.ParquetFile(io.BytesIO(encode_shard(batch_of([([1], [2], True)])))).metadata.row_group(0).column(1)
    )
    assert column.path_in_schema.startswith("input_ids")
    assert column.compression == "ZSTD"
    assert not any("DICTIONARY" in encoding for encoding in column.encodings)


def test_anyone_can_read_it() -> None:
    """A plain Parquet reader sees the documented columns."""
    table = pq.read_table(io.BytesIO(encode_shard(batch_of([([1, 2], [3], True)]))))
    row = table.to_pylist()[0]
    assert row["input_ids"] == [1, 2, 3]
    assert row["prompt_length"] == 2
    assert row["segments"][1] == {"kind": "content", "start": 2, "stop": 3}


def test_provenance_and_frequencies() -> None:
    """Named facts have columns, the others stay JSON; frequencies count accepted output ids only."""
    checked = batch_of([([1], [7, 7, 8], True), ([1], [7], False)])
    checked.completions[0].facts.update(server="http://a", attempts=2, latency_seconds=1.5, extra={"a": [1]})
    rows = decode_provenance(encode_provenance(checked))
    assert rows[0]["server"] == "http://a"
    assert rows[0]["attempts"] == 2
    assert rows[0]["facts"] == {"x": 0, "extra": {"a": [1]}}
    assert [row["accepted"] for row in rows] == [True, False]
    assert decode_frequencies(encode_frequencies(checked)) == {7: 2, 8: 1}


def reshaped(change: Callable[[pa.Table], pa.Table]) -> bytes:
    """Return shard bytes after a change to their table."""
    sink = io.BytesIO()
    pq.write_table(change(pq.read_table(io.BytesIO(encode_shard(batch_of([([1, 2], [3], True)]))))), sink)
    return sink.getvalue()


def set_column(name: str, values: list[Any], kind: pa.DataType) -> Callable[[pa.Table], pa.Table]:
    """Return a change that replaces a column."""
    return lambda table: table.set_column(table.schema.get_field_index(name), name, pa.array(values, kind))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "expected a Parquet file"),
        (b"PAR1 and more", "expected a Parquet file"),
        (reshaped(lambda table: table.drop_columns(["metadata"])), "expected columns row_id string"),
        (reshaped(set_column("prompt_length", [2], pa.int64())), "expected columns row_id string"),
        (reshaped(set_column("row_id", [None], pa.string())), "expected no null in row_id, got 1"),
        (
            reshaped(set_column("prompt_length", [4], pa.int32())),
            r"row 0: expected prompt_length in \[0, 3\], got 4",
        ),
    ],
    ids=["empty", "not-parquet", "column-missing", "type", "null", "boundary"],
)
def test_other_bytes_are_refused(data: bytes, message: str) -> None:
    """What is not a shard is refused by name."""
    with pytest.raises(DataError, match=message) as caught:
        decode_shard(data, "shards/x.parquet")
    assert str(caught.value).startswith("shards/x.parquet")


READ_AND_EXIT = """
import sys
from pathlib import Path
from tasks.dataset.shard_reader import decode_shard
decode_shard(Path(sys.argv[1]).read_bytes())
sys.exit(1)
"""


@pytest.mark.process
def test_reading_a_shard_leaves_the_exit_status_alone(tmp_path: Path) -> None:
    """A thread of pyarrow's that still held Python's bytes at the end aborted two of three such processes."""
    shard = tmp_path / "s.parquet"
    shard.write_bytes(encode_shard(batch_of([([1, 2], [3], True)] * 6)))
    command = [sys.executable, "-c", READ_AND_EXIT, str(shard)]
    assert [subprocess.run(command, check=False).returncode for _ in range(6)] == [1] * 6


@pytest.mark.parametrize(("most", "chunks"), [(100, 1), (10, 2), (6, 3), (1, 5)])
def test_more_ids_than_32_bit_offsets_reach_lie_in_chunks(most: int, chunks: int) -> None:
    """A batch above 2**31 ids is written like any other; an ordinary one is one chunk."""
    rows = [[1, 2, 3], [], [4, 5, 6, 7], [8, 9], [10, 11, 12]]
    lists = id_lists(Ragged.from_rows([as_ids(row) for row in rows]), most)
    assert lists.to_pylist() == rows
    assert lists.num_chunks == chunks
    assert id_lists(Ragged.from_rows([])).to_pylist() == []
