"""Judges token data from anywhere: files of other tools against the grammar of a tokenizer."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

import attrs
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.errors import SourceError
from tasks.grammar.check import check_rows
from tasks.grammar.foreign_rows import foreign_completions
from tasks.grammar.grammar import Grammar
from tasks.rows.records import Completion, Ragged, Segment, Verdict
from tasks.rows.verdicts import Code, kind_of

ROWS_AT_ONCE = 512


KINDS: Final = (".jsonl", ".parquet", ".arrow")
"""Endings of the files that a folder is searched for."""

_WORST: Final = ("integrity", "never_sent", "behaviour", "cut", "canonical")


@attrs.frozen(slots=True, eq=False)
class Judged:
    """One row of a file and what the grammar says of it.

    Args:
        path: of the file.
        line: 1-based line of a JSONL file, or number of the row in another.
        row_id: the row's own `row_id` or `id`, else `file:line`.
        verdict: code, offset, segments; of several outputs the worst code.
    """

    path: Path
    line: int
    row_id: str
    verdict: Verdict


def judge_files(path: Path, grammar: Grammar) -> Iterator[Judged]:
    """Yield the verdict of every row of a file, or of all files of a folder by name; few rows are in memory.

    Raises:
        SourceError: a file is missing, empty, or no JSONL, Parquet or Arrow.
        DataError: a row has none of the forms that hold token data; names `file:line`.
    """
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in KINDS)
        if not files:
            raise SourceError(f"{path}: expected files that end in {', '.join(KINDS)}, found none")
    for file in files:
        yield from _judge_file(file, grammar)


def _judge_file(path: Path, grammar: Grammar) -> Iterator[Judged]:
    read = {".parquet": _parquet_rows, ".arrow": _arrow_rows}.get(path.suffix, _json_rows)
    rows, seen = read(path), 0
    while part := list(islice(rows, ROWS_AT_ONCE)):
        seen += len(part)
        outputs = [foreign_completions(grammar, f"{path}:{line}", row) for line, row in part]
        verdicts = iter(_verdicts(grammar, [output for each in outputs for output in each]))
        for (line, row), each in zip(part, outputs, strict=True):
            name = row.get("row_id") or row.get("id") or f"{path}:{line}"
            yield Judged(path, line, str(name), _joined(list(islice(verdicts, len(each)))))
    if not seen:
        raise SourceError(f"{path}: expected rows of token ids, got an empty file")


def _verdicts(grammar: Grammar, completions: list[Completion]) -> Sequence[Verdict]:
    inputs = Ragged.from_rows([completion.input_ids for completion in completions])
    outputs = Ragged.from_rows([completion.output_ids for completion in completions])
    return check_rows(grammar, inputs, outputs, completions)


def _joined(verdicts: list[Verdict]) -> Verdict:
    """Return the verdicts of a row's outputs as one: the first of the worst kind, the segments of all."""
    if len(verdicts) == 1:
        return verdicts[0]
    worst = min(verdicts, key=lambda verdict: _WORST.index(kind_of(Code(verdict.code))))
    segments: list[Segment] = []
    for verdict in verdicts:
        at = segments[-1].stop if segments else 0
        new = [part if part.start >= at else part._replace(start=at) for part in verdict.segments]
        segments += [part for part in new if part.start < part.stop]
    return attrs.evolve(worst, segments=tuple(segments))


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
    try:
        with pq.ParquetFile(path) as file:
            yield from _numbered(file.iter_batches(ROWS_AT_ONCE))
    except (OSError, pa.ArrowException) as error:
        raise SourceError(f"{path}: cannot read it as Parquet: {error}") from None


def _arrow_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield every row of a stream as `datasets` saves them, with its 1-based number."""
    try:
        with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as stream:
            yield from _numbered(stream)
    except (OSError, pa.ArrowException) as error:
        raise SourceError(f"{path}: cannot read it as an Arrow stream: {error}") from None


def _numbered(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    number = 1
    for batch in batches:
        yield from enumerate(batch.to_pylist(), number)
        number += batch.num_rows
