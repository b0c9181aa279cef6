"""Prompt files as one stream of records, with places from which any batch can be read again.

A source is one file. Its name is the file's stem, and once planned it keeps its name for good. Records come
in file order; nothing but the record at hand is held in memory.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import attrs

from tasks.errors import JobError, SourceError
from tasks.spec import PromptsSpec, StoreSpec
from tasks.storage.plan import Batch, Span, batch_fingerprint
from tasks.storage.record import IDS, SHAPES, Record

SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet")


@attrs.frozen(slots=True)
class Place:
    """Where the next record of a source begins.

    Args:
        line: 1-based line or row of the next record.
        offset: its byte offset; 0 where the file has no such thing (Parquet).
    """

    line: int = 1
    offset: int = 0


class SourceFile(Protocol):
    """One prompt file."""

    def records(self, name: str, place: Place, fields: Mapping[str, str]) -> Iterator[tuple[Record, Place]]:
        """Yield the records from `place` on, each with where it begins; owns and closes the file."""


@attrs.define(slots=True, eq=False)
class Sources:
    """The job's prompt files in plan order.

    Args:
        prompts: the job's section.
        files: by uri, in the order of `prompts.sources`.
        names: name of each uri.
        missing: names that the plan knows and whose file is not among the sources.
        seal: job id and sha256 of what it resolved to; set by the ledger, then `read` checks fingerprints.
    """

    prompts: PromptsSpec
    files: dict[str, SourceFile]
    names: dict[str, str] = attrs.field(factory=dict)
    missing: dict[str, str] = attrs.field(factory=dict)
    seal: tuple[str, str] | None = None

    def __attrs_post_init__(self) -> None:
        self.know(())

    def know(self, planned: Sequence[tuple[str, str]]) -> None:
        """Name every file; those that the plan already names keep their names.

        Args:
            planned: (name, uri) of every source in the plan.
        """
        self.names = {uri: name for name, uri in planned if uri in self.files}
        self.missing = {name: uri for name, uri in planned if uri not in self.files}
        for name, uri in list(self.missing.items()):
            moved = [new for new in self.files if new not in self.names and Path(new).name == Path(uri).name]
            if len(moved) == 1:  # same file name elsewhere: the fingerprints tell whether it is the same file
                self.names[moved[0]] = name
                del self.missing[name]
        taken = {name for name, _ in planned}
        for uri in self.files:
            if uri not in self.names:
                self.names[uri] = _free_name(uri, taken)
                taken.add(self.names[uri])

    def scan(self, after: Mapping[str, Place] | None = None) -> Iterator[tuple[Record, Place]]:
        """Yield every record behind the given places, source by source, with the place where it begins.

        Args:
            after: by source name, where the next unplanned record begins; a source that is not in it is new.

        Raises:
            SourceError: a new file has no record at all.
        """
        for uri, file in self.files.items():
            name = self.names[uri]
            place = (after or {}).get(name)
            empty = place is None
            for found in file.records(name, place or Place(), self.prompts.fields):
                empty = False
                yield found
            if empty:
                raise SourceError(f"{uri}: expected prompt records, got an empty file")

    def read(self, batch: Batch) -> list[Record]:
        """Return the batch's records, in plan order.

        Raises:
            SourceError: a file is gone, or its records are not those that were planned.
        """
        records = [record for span in batch.spans for record in self._read_span(batch, span)]
        if self.seal is not None and batch_fingerprint(*self.seal, records) != batch.fingerprint:
            spans = ", ".join(f"{span.source} from line {span.first_line}" for span in batch.spans)
            raise SourceError(
                f"batch {batch.index} ({spans}): expected the records that were planned, got other content: "
                "a prompt file, or what the job resolves to, was changed; restore it, or rename the job"
            )
        return records

    def _read_span(self, batch: Batch, span: Span) -> Iterator[Record]:
        uri = next((uri for uri, name in self.names.items() if name == span.source), None)
        if uri is None:
            raise SourceError(
                f"batch {batch.index}: expected source {span.source!r} "
                f"({self.missing.get(span.source, '?')}) among prompts.sources, got none: "
                "add it again; what is planned stays planned"
            )
        found = self.files[uri].records(span.source, Place(span.first_line, span.offset), self.prompts.fields)
        count = 0
        for record, _ in found:
            yield record
            count += 1
            if count == span.records:
                return
        raise SourceError(
            f"{uri}:{span.first_line}: expected {span.records} records from there on, as planned for batch "
            f"{batch.index}, got {count}"
        )


def _free_name(uri: str, taken: set[str]) -> str:
    path = Path(uri)
    stem = path.stem or "source"
    for name in (stem, f"{path.parent.name}-{stem}"):
        if name not in taken:
            return name
    number = 2
    while f"{stem}-{number}" in taken:
        number += 1
    return f"{stem}-{number}"


def open_sources(
    prompts: PromptsSpec,
    store: StoreSpec | None = None,
    credentials: Mapping[str, str] | None = None,
) -> Sources:
    """Find the prompt files that `prompts.sources` names: files, folders, globs, `s3://` addresses.

    Args:
        prompts: the job's section.
        store: `s3://` sources are read from the endpoint of the job's store; None leaves it to the AWS chain.
        credentials: of that endpoint, as in `open_store`.

    Raises:
        SourceError: a source names no file, or a file of an unknown kind.
        JobError: `prompts.fields` has a name that is none of ours.
    """
    known = (*SHAPES, "tools", *IDS)
    for ours in prompts.fields:
        if ours not in known:
            raise JobError(f"prompts.fields: expected our names ({', '.join(known)}), got {ours!r}")
    files: dict[str, SourceFile] = {}
    clients: dict[str, Any] = {}
    for index, source in enumerate(prompts.sources):
        if source.startswith("s3://"):
            from tasks.storage.s3_source import s3_objects  # boto3 is only loaded where it is used

            found = s3_objects(source, SUFFIXES, store, credentials, clients)
            if not found:
                raise SourceError(
                    f"prompts.sources[{index}]: expected prompt files at {source!r}, found none"
                )
            for item in found:
                files.setdefault(item.uri, _file(item.uri, item.open))
        else:
            for path in _expand(source, index):
                files.setdefault(str(path), _file(str(path), functools.partial(_open_local, path)))
    return Sources(prompts, files)


def _expand(source: str, index: int) -> list[Path]:
    where = f"prompts.sources[{index}]"
    path = Path(source).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        found = sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES and p.is_file())
        if not found:
            raise SourceError(f"{where}: expected {', '.join(SUFFIXES)} files below {source!r}, found none")
        return found
    if any(sign in source for sign in "*?["):
        anchor = Path(path.anchor) if path.is_absolute() else Path()
        pattern = str(path.relative_to(path.anchor)) if path.is_absolute() else str(path)
        found = sorted(p for p in anchor.glob(pattern) if p.is_file())
        if not found:
            raise SourceError(f"{where}: expected files that match {source!r}, found none")
        return found
    raise SourceError(f"{where}: expected a file, a folder or a glob, found nothing at {source!r}")


def _open_local(path: Path) -> BinaryIO:
    return path.open("rb")


def _file(uri: str, opener: Callable[[], BinaryIO]) -> SourceFile:
    suffix = Path(uri).suffix
    if suffix == ".parquet":
        from tasks.storage.parquet_source import ParquetFile  # pyarrow is only loaded where it is used

        return ParquetFile(uri, opener)
    if suffix in SUFFIXES:
        from tasks.storage.jsonl_source import JsonlFile

        return JsonlFile(uri, opener)
    raise SourceError(f"{uri}: expected one of {', '.join(SUFFIXES)}, got {suffix or 'no suffix'!r}")
