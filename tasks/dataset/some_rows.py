"""A few rows of a large file without fetching the file: its footer, its names, then the rows' groups."""

import io
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.dataset.shard import REJECTED_SCHEMA, SHARD_SCHEMA, ShardRows
from tasks.dataset.shard_reader import check_columns, rows_of
from tasks.errors import DataError
from tasks.ledger.ledger import Ledger
from tasks.ledger.receipt import FileEntry
from tasks.store.contract import ObjectStore

NAMES: Final = ["row_id", "verdict"]


class StoredFile(io.RawIOBase):
    """An object of a store as a file that is read in ranges.

    Args:
        store: that holds it.
        key: of the object.
        size: its bytes.
    """

    def __init__(self, store: ObjectStore, key: str, size: int) -> None:
        super().__init__()
        self._store, self._key, self._size, self._at = store, key, size, 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Return the place of the next byte."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Return up to `size` bytes from here on."""
        stop = self._size if size is None or size < 0 else min(self._size, self._at + size)
        if stop <= self._at:
            return b""
        data = self._store.get_range(self._key, self._at, stop)
        self._at += len(data)
        return data


@attrs.frozen(slots=True)
class Wanted:
    """Which rows to look at.

    Args:
        row_ids: only these, accepted or not; empty: all.
        rejected: rejected rows instead of accepted ones.
        code: only rejected rows of this code; "" for any.
    """

    row_ids: frozenset[str] = frozenset()
    rejected: bool = False
    code: str = ""

    def picks(self, row_ids: Sequence[str], verdicts: Sequence[str]) -> list[int]:
        """Return the indices of wanted rows."""
        return [
            row
            for row, (row_id, verdict) in enumerate(zip(row_ids, verdicts, strict=True))
            if (not self.row_ids or row_id in self.row_ids) and self.code in ("", verdict)
        ]


def peek(store: ObjectStore, job_id: str, wanted: Wanted, skip: int = 0) -> Iterator[ShardRows]:
    """Yield wanted rows in source order, batch by batch and few at a time: stop when there are enough.

    Args:
        store: the job's own prefix.
        job_id: of its job.
        wanted: which rows.
        skip: wanted rows that are left out first; whole files among them are not opened.

    Raises:
        DataError: a file is not what its receipt says.
    """
    for receipt in Ledger(store, job_id).iter_receipts():
        files = []
        if receipt.shard is not None and not wanted.rejected:
            files.append((receipt.shard, SHARD_SCHEMA, receipt.shard.rows))
        if receipt.rejected is not None and (wanted.rejected or wanted.row_ids):
            by_code = receipt.rows["by_verdict"].get(wanted.code, 0)
            rows = by_code if wanted.code else receipt.rejected.rows
            files.append((receipt.rejected, REJECTED_SCHEMA, rows))
        for entry, schema, rows in files:
            if not wanted.row_ids and rows <= skip:
                skip -= rows
                continue
            for found in peek_file(store, entry, schema, wanted.picks):
                yield from _one_by_one(found, skip, entry.key)
                skip = max(0, skip - len(found))


def peek_file(
    store: ObjectStore, entry: FileEntry, schema: pa.Schema, picks: Callable[..., list[int]]
) -> Iterator[pa.Table]:
    """Yield the picked rows of each row group of a file as a table.

    Args:
        store: that holds it.
        entry: the file.
        schema: what it must have.
        picks: row ids and verdicts of a group to the indices of wanted rows.
    """
    where = f"{store.uri}/{entry.key}"
    try:
        with pq.ParquetFile(StoredFile(store, entry.key, entry.bytes)) as file:
            check_columns(file.schema_arrow, schema, where)
            for group in range(file.num_row_groups):
                names = file.read_row_group(group, NAMES, use_threads=False)  # see shard_reader
                rows = picks(*(names[name].to_pylist() for name in NAMES))
                if rows:
                    yield file.read_row_group(group, use_threads=False).take(rows)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{where}: expected a Parquet file, got {error}") from error


def _one_by_one(table: pa.Table, skip: int, where: str) -> Iterator[ShardRows]:
    for row in range(skip, len(table)):
        yield rows_of(table.slice(row, 1).combine_chunks(), where)
