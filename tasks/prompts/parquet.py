"""Parquet: one record a row, read from any row by skipping whole row groups."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO

import attrs
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.errors import SourceError
from tasks.prompts.record import Place, Record, make_record

_ROWS_AT_ONCE = 256


@attrs.frozen(slots=True)
class ParquetFile:
    """Parquet behind an opener; a null column counts as absent from its row."""

    uri: str
    open: Callable[[], BinaryIO]
    stamp: Callable[[], str | None] = lambda: None

    def records(self, name: str, place: Place, fields: Mapping[str, str]) -> Iterator[tuple[Record, Place]]:
        """See `SourceFile.records`; a place's line is the 1-based row, its offset is 0."""
        try:
            with self.open() as handle, pq.ParquetFile(handle) as file:
                for row, data in _rows(file, place.line - 1):
                    raw = orjson.dumps(
                        data, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS, default=str
                    )
                    digest = hashlib.sha256(raw).hexdigest()
                    here = Place(row + 1)
                    yield make_record(data, name, self.uri, row + 1, fields, digest), here
        except (OSError, pa.ArrowException) as error:
            raise SourceError(f"{self.uri}: expected a Parquet file, got {error}") from error


def _rows(file: pq.ParquetFile, first: int) -> Iterator[tuple[int, dict[str, object]]]:
    start = 0
    groups: list[int] = []
    skip = 0
    for group in range(file.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if start + rows > first:
            if not groups:
                skip = first - start
            groups.append(group)
        start += rows
    row = first - skip
    if not groups:
        return
    # In this thread alone, as `shard_reader` reads.
    for batch in file.iter_batches(_ROWS_AT_ONCE, row_groups=groups, use_threads=False):
        if row + batch.num_rows <= first:
            row += batch.num_rows
            continue
        for data in batch.to_pylist():
            if row >= first:
                yield row, {key: value for key, value in data.items() if value is not None}
            row += 1
