"""A few rows of a large shard are read in ranges, the same on every store, without fetching the shard."""

import attrs
import numpy as np
import pytest

from tasks.dataset.shard import REJECTED_SCHEMA, SHARD_SCHEMA, encode_shard
from tasks.dataset.shard_reader import decode_shard, rows_of
from tasks.dataset.some_rows import Wanted, peek_file
from tasks.errors import DataError
from tasks.ledger.receipt import FileEntry
from tasks.store.contract import MissingError, ObjectStore, sha256_hex
from tests.support.stores import Row, answer, checked, prompt_of


@attrs.define
class Counted:
    """A real store, of which the bytes that are handed out are counted."""

    store: ObjectStore
    uri: str = "counted"
    fetched: int = 0

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        """Pass on."""
        data = self.store.get_range(key, start, stop)
        self.fetched += len(data)
        return data


def put_shard(store: ObjectStore, rows: int) -> tuple[FileEntry, bytes]:
    """Store a shard of several row groups."""
    draw = np.random.default_rng(1)
    said = [draw.integers(10, 800, 150).tolist() for _ in range(rows)]
    made = [Row(f"r{number}", prompt_of(20), answer(ids, (30,))) for number, ids in enumerate(said)]
    data = encode_shard(checked(0, made))
    digest = sha256_hex(data)
    key = f"shards/{digest}.parquet"
    store.put(key, data)
    return FileEntry(key, digest, len(data), rows, 0), data


def test_rows_are_those_of_the_shard_at_a_fraction_of_its_bytes(store: ObjectStore) -> None:
    """One row of the last group: its ids are right, and the other groups' ids were not fetched."""
    entry, data = put_shard(store, 4100)
    whole, counted = decode_shard(data), Counted(store)
    wanted = Wanted(frozenset({"s:r4050#t0~s0"}))
    (table,) = peek_file(counted, entry, SHARD_SCHEMA, wanted.picks)  # type: ignore[arg-type]
    found = rows_of(table, "table")
    assert found.row_ids == ("s:r4050#t0~s0",)
    assert found.sequences.row(0).tolist() == whole.sequences.row(4050).tolist()
    assert found.segments[0] == whole.segments[4050]
    assert counted.fetched < entry.bytes / 4


def test_ranges(store: ObjectStore) -> None:
    """Half-open; an absent object is missing, not empty."""
    store.put("shards/x", b"0123456789")
    assert store.get_range("shards/x", 2, 5) == b"234"
    assert store.get_range("shards/x", 0, 10) == b"0123456789"
    with pytest.raises(MissingError):
        store.get_range("shards/y", 0, 1)


def test_a_file_that_is_no_shard_is_named(store: ObjectStore) -> None:
    """Other columns, or no Parquet at all."""
    entry, _ = put_shard(store, 10)
    with pytest.raises(DataError, match="expected columns"):
        list(peek_file(store, entry, REJECTED_SCHEMA, Wanted().picks))
    store.put(entry.key, b"x" * entry.bytes)
    with pytest.raises(DataError, match="expected a Parquet file"):
        list(peek_file(store, entry, SHARD_SCHEMA, Wanted().picks))
