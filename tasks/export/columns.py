"""Rows gathered into record batches of bounded size, for the columnar formats."""

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa

from tasks.export.files import ExportRow

GROUP_IDS: Final = 2**20
"""Ids that are held before they are written: 16 MiB of two int64 columns."""

GROUP_ROWS: Final = 1000
"""datasets' own size of a record batch: a row is found without reading more than that."""


class Group:
    """Holds rows until there are enough, then hands them on."""

    def __init__(self, take: Callable[[list[ExportRow]], None]) -> None:
        self._take = take
        self._rows: list[ExportRow] = []
        self._ids = 0

    def add(self, row: ExportRow) -> None:
        """Hold a row, a copy of its ids: the shard that it views may go."""
        self._rows.append(ExportRow(row.example, row.input_ids.copy(), row.loss_mask))
        self._ids += row.input_ids.size
        if self._ids >= GROUP_IDS or len(self._rows) >= GROUP_ROWS:
            self.finish()

    def finish(self) -> None:
        """Hand on what is left."""
        if self._rows:
            self._take(self._rows)
            self._rows, self._ids = [], 0


def id_column(rows: list[ExportRow], item: pa.DataType) -> pa.Array:
    """Return `input_ids` as list<item>."""
    return _lists([row.input_ids for row in rows], item)


def mask_column(rows: list[ExportRow], item: pa.DataType) -> pa.Array:
    """Return `loss_mask` as list<item> of 0 and 1."""
    return _lists([row.loss_mask for row in rows], item)


def _lists(rows: list[np.ndarray], item: pa.DataType) -> pa.Array:
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([row.size for row in rows], out=offsets[1:])
    values = np.concatenate(rows).astype(item.to_pandas_dtype())
    return pa.ListArray.from_arrays(offsets, pa.array(values, item))


def length_column(rows: list[ExportRow], kind: pa.DataType) -> pa.Array:
    """Return ids per row."""
    return pa.array([row.input_ids.size for row in rows], kind)


ROW_SCHEMA: Final = pa.schema(
    [
        ("row_id", pa.string()),
        ("input_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.int8())),
        ("prompt_length", pa.int32()),
        ("seq_len", pa.int32()),
        ("verdict", pa.string()),
        ("metadata", pa.string()),
    ]
)
"""The columns of `datasets` and `parquet`."""


def row_batch(rows: list[ExportRow]) -> pa.RecordBatch:
    """Return rows in `ROW_SCHEMA`."""
    columns = [
        pa.array([row.example.row_id for row in rows], pa.string()),
        id_column(rows, pa.int32()),
        mask_column(rows, pa.int8()),
        pa.array([row.example.prompt_length for row in rows], pa.int32()),
        length_column(rows, pa.int32()),
        pa.array([row.example.verdict for row in rows], pa.string()),
        pa.array([row.example.metadata for row in rows], pa.string()),
    ]
    return pa.record_batch(columns, schema=ROW_SCHEMA)
