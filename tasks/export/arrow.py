"""Folders as `datasets.Dataset.save_to_disk` leaves them, written as a stream; `datasets` is not needed.

Form of datasets 4 and 5: Arrow IPC streams, `state.json` that names them, `dataset_info.json` with features.
"""

from collections.abc import Callable
from typing import Any, Final

import orjson
import pyarrow as pa

from tasks.export.columns import (
    ROW_SCHEMA,
    Group,
    id_column,
    length_column,
    mask_column,
    row_batch,
)
from tasks.export.files import ExportRow
from tasks.store.contract import canonical, sha256_hex
from tasks.store.new_object import NewObject

SPECULATORS_SCHEMA: Final = pa.schema(
    [("input_ids", pa.list_(pa.int64())), ("loss_mask", pa.list_(pa.int64())), ("seq_len", pa.int64())]
)
"""What `speculators prepare-data` (0.9.0) leaves: `seq_len` is required, int64 throughout."""


class _StreamWriter:
    def __init__(
        self, file: NewObject, schema: pa.Schema, batch: Callable[[list[ExportRow]], pa.RecordBatch]
    ) -> None:
        described = schema.with_metadata(
            {"huggingface": canonical({"info": {"features": _features(schema)}})}
        )
        self._stream = pa.ipc.new_stream(pa.PythonFile(file, "w"), described)
        self._group = Group(lambda rows: self._stream.write_batch(batch(rows)))

    def add(self, row: ExportRow) -> None:
        """See `RowWriter.add`."""
        self._group.add(row)

    def finish(self) -> None:
        """See `RowWriter.finish`."""
        self._group.finish()
        self._stream.close()


class SpeculatorsWriter(_StreamWriter):
    """`input_ids`, `loss_mask`, `seq_len`, all int64."""

    def __init__(self, file: NewObject) -> None:
        super().__init__(file, SPECULATORS_SCHEMA, _speculators_batch)


class DatasetsWriter(_StreamWriter):
    """All columns of `ROW_SCHEMA`."""

    def __init__(self, file: NewObject) -> None:
        super().__init__(file, ROW_SCHEMA, row_batch)


def _speculators_batch(rows: list[ExportRow]) -> pa.RecordBatch:
    columns = [id_column(rows, pa.int64()), mask_column(rows, pa.int64()), length_column(rows, pa.int64())]
    return pa.record_batch(columns, schema=SPECULATORS_SCHEMA)


def _features(schema: pa.Schema) -> dict[str, Any]:
    def feature(kind: pa.DataType) -> dict[str, Any]:
        if pa.types.is_list(kind):
            return {"feature": feature(kind.value_type), "_type": "List"}
        return {"dtype": str(kind), "_type": "Value"}

    return {field.name: feature(field.type) for field in schema}


def speculators_files(names: list[str]) -> dict[str, bytes]:
    """Return the small files of a split. Rows come as torch tensors, as `prepare-data` sets it."""
    return _small_files(SPECULATORS_SCHEMA, names, "torch")


def datasets_files(names: list[str]) -> dict[str, bytes]:
    """Return the small files of a split."""
    return _small_files(ROW_SCHEMA, names, None)


def dataset_dict(splits: list[str]) -> dict[str, bytes]:
    """Return the file that makes a folder of splits a `DatasetDict`."""
    return {"dataset_dict.json": orjson.dumps({"splits": splits})}


def _small_files(schema: pa.Schema, names: list[str], form: str | None) -> dict[str, bytes]:
    state: dict[str, Any] = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": sha256_hex(canonical([str(schema), names]))[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": form,
        "_output_all_columns": False,
        "_split": None,
    }
    info = {"citation": "", "description": "", "features": _features(schema), "homepage": "", "license": ""}
    style = orjson.OPT_INDENT_2
    return {
        "state.json": orjson.dumps(state, option=style),
        "dataset_info.json": orjson.dumps(info, option=style),
    }
