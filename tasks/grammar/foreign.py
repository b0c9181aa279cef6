"""Judges token data from anywhere: files of other tools against the grammar of a tokenizer."""

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import attrs
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.errors import SourceError
from tasks.grammar.check import check_rows
from tasks.grammar.foreign_rows import foreign_completion
from tasks.grammar.grammar import Grammar
from tasks.rows.records import Completion, Ragged, Verdict

ROWS_AT_ONCE = 512


@attrs.frozen(slots=True, eq=False)
class Judged:
    """One row of a file and what the grammar says of it.

    Args:
        line: 1-based line of a JSONL file, or row of a Parquet file.
        row_id: the row's own `row_id` or `id`, else `file:line`.
        completion: its ids.
        verdict: code, offset, segments.
    """

    line: int
    row_id: str
    completion: Completion
    verdict: Verdict


def judge_file(path: Path, grammar: Grammar) -> Iterator[Judged]:
    """Yield the verdict of every row of a JSONL or Parquet file, in order; only a few rows are in memory.

    Raises:
        SourceError: the file is missing, empty, or no JSONL or Parquet.
        DataError: a row has none of the forms that hold token data; names `file:line`.
    """
    rows = _parquet_rows(path) if path.suffix == ".parquet" else _json_rows(path)
    seen = 0
    while part := list(islice(rows, ROWS_AT_ONCE)):
        seen += len(part)
        completions = [foreign_completion(grammar, f"{path}:{line}", row) for line, row in part]
        inputs = Ragged.from_rows([c.input_ids for c in completions])
        outputs = Ragged.from_rows([c.output_ids for c in completions])
        verdicts = check_rows(grammar, inputs, outputs, completions)
        for (line, row), completion, verdict in zip(part, completions, verdicts, strict=True):
            name = row.get("row_id") or row.get("id") or completion.row_id
            yield Judged(line, str(name), completion, verdict)
    if not seen:
        raise SourceError(f"{path}: expected rows of token ids, got an empty file")


def _json_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield every row with its 1-based line; blank lines are passed over and counted."""
    try:
        with path.open("rb") as file:
            for line, raw in enumerate(file, start=1):
                if not raw.strip():
                    continue
                row = orjson.loads(raw)
                if not isinstance(row, dict):
                    raise SourceError(f"{path}:{line}: expected a JSON object, got {type(row).__name__}")
                yield line, row
    except OSError as error:
        raise SourceError(f"{path}: cannot read it: {error.strerror}") from None
    except orjson.JSONDecodeError as error:
        raise SourceError(f"{path}:{line}: expected one JSON object a line, got: {error}") from None


def _parquet_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield every row with its 1-based number."""
    number = 1
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(ROWS_AT_ONCE):
                yield from enumerate(batch.to_pylist(), number)
                number += batch.num_rows
    except (OSError, pa.ArrowException) as error:
        raise SourceError(f"{path}: cannot read it as Parquet: {error}") from None
