"""`prompts.exclude`: the prompts of evaluation sets, by key, with file and line."""

from collections.abc import Iterator, Mapping

from tasks.errors import SourceError
from tasks.prompts.duplicates import opening_keys
from tasks.prompts.record import Place, Record, SourceFile
from tasks.prompts.sources import Sources


def read_exclusion(sources: Sources) -> dict[bytes, str]:
    """Return file:line of every excluded prompt by the key of all its user messages; all in memory.

    Raises:
        SourceError: a malformed record or an empty file: what cannot be read would not be excluded.
    """
    found: dict[bytes, str] = {}
    for uri, file in sources.exclude.items():
        empty = True
        for record in _records(file, sources.prompts.fields):
            if record.error:
                raise SourceError(f"prompts.exclude: {record.error}")
            empty = False
            *_, key = opening_keys(record)
            found.setdefault(key, f"{uri}:{record.line}")
        if empty:
            raise SourceError(f"prompts.exclude: {uri}: expected prompt records, got an empty file")
    return found


def _records(file: SourceFile, fields: Mapping[str, str]) -> Iterator[Record]:
    """Yield the file's records: with our names for its columns, else with those of `prompts.fields`."""
    for record, _ in file.records("exclude", Place(), {}):
        if record.error and fields:
            yield from _mapped(file, fields, record.line)
            return
        yield record


def _mapped(file: SourceFile, fields: Mapping[str, str], line: int) -> Iterator[Record]:
    for record, _ in file.records("exclude", Place(), fields):
        if record.line >= line:
            yield record
