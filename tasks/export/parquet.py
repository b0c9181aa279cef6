"""Parquet files: `datasets.load_dataset("parquet", …)`, pandas, polars, DuckDB read them."""

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.export.columns import ROW_SCHEMA, Group, row_batch
from tasks.export.files import ExportRow
from tasks.store.new_object import NewObject


class ParquetRows:
    """All columns of `ROW_SCHEMA`, zstd, one row group per record batch."""

    def __init__(self, file: NewObject) -> None:
        self._writer = pq.ParquetWriter(
            pa.PythonFile(file, "w"),
            ROW_SCHEMA,
            version="2.6",
            compression="zstd",
            use_dictionary=["verdict"],
            write_statistics=False,
        )
        self._group = Group(lambda rows: self._writer.write_batch(row_batch(rows)))

    def add(self, row: ExportRow) -> None:
        """See `RowWriter.add`."""
        self._group.add(row)

    def finish(self) -> None:
        """See `RowWriter.finish`."""
        self._group.finish()
        self._writer.close()
