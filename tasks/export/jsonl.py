"""Rows as JSON lines: SpecForge's `data.prompts_path` and speculators' pretokenized rows are the same."""

from collections.abc import Callable

import numpy as np
import orjson

from tasks.export.files import ExportRow
from tasks.store.new_object import NewObject

_BUFFER_BYTES = 2**20


class JsonlWriter:
    """One object a line.

    Args:
        file: the open file.
        line: makes a row's line.
    """

    def __init__(self, file: NewObject, line: Callable[[ExportRow], bytes] | None = None) -> None:
        self._file = file
        self._line = line or row_line
        self._buffer = bytearray()

    def add(self, row: ExportRow) -> None:
        """See `RowWriter.add`."""
        self._buffer += self._line(row)
        if len(self._buffer) >= _BUFFER_BYTES:
            self.finish()

    def finish(self) -> None:
        """See `RowWriter.finish`."""
        self._file.write(bytes(self._buffer))
        self._buffer.clear()


def row_line(row: ExportRow) -> bytes:
    """Return `input_ids`, `loss_mask` of 0 and 1, and `row_id`, which both trainers ignore."""
    value = {
        "input_ids": np.ascontiguousarray(row.input_ids),
        "loss_mask": row.loss_mask.astype(np.uint8),
        "row_id": row.example.row_id,
    }
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n"
