"""Prompt files as one stream of records, with places from which any batch can be read again.

Each file is a source of its own: it is named as the job says, else by its stem, and once planned it keeps its
name for good. Its records come in its order; nothing but the record at hand is held in memory.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

import attrs

from tasks.errors import JobError, SourceError
from tasks.job.spec import PromptsSpec, SourceSpec
from tasks.ledger.batch import Batch, Drop, Span
from tasks.ledger.fingerprint import batch_fingerprint
from tasks.ledger.plan import Mark
from tasks.prompts.interleave import in_batch_order, merged
from tasks.prompts.record import Place, Record, SourceFile, fit_for
from tasks.rows.verdicts import Code

_DROPPED = {
    "duplicate": "expected a prompt that no earlier record has, got the messages and tools of {} again",
    "excluded": "expected a prompt that prompts.exclude does not have, got the user messages of {}",
}


@attrs.define(slots=True, eq=False)
class Sources:
    """The job's prompt files in plan order.

    Args:
        prompts: the job's section.
        files: by uri, in the order of `prompts.sources`.
        parts: by uri, which of `prompts.parts` names it.
        exclude: by uri, the files of `prompts.exclude`.
        names: name of each uri.
        missing: names that the plan knows and whose file is not among the sources.
        apart: (name, uri) of files that are not what was planned under the name, though they look moved.
        seal: job id and sha256 of what it resolved to; set by the ledger, then `read` checks fingerprints.
    """

    prompts: PromptsSpec
    files: dict[str, SourceFile]
    parts: dict[str, int]
    exclude: dict[str, SourceFile] = attrs.field(factory=dict)
    names: dict[str, str] = attrs.field(factory=dict)
    missing: dict[str, str] = attrs.field(factory=dict)
    apart: set[tuple[str, str]] = attrs.field(factory=set)
    seal: tuple[str, str] | None = None
    _specs: tuple[SourceSpec, ...] = attrs.field(init=False)
    _sizes: Counter[int] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._specs = self.prompts.parts
        self._sizes = Counter(self.parts.values())
        self.know(())

    def know(self, planned: Sequence[tuple[str, str]]) -> None:
        """Name every file; those that the plan already names keep their names.

        Args:
            planned: (name, uri) of every source in the plan.
        """
        self.names = {uri: name for name, uri in planned if uri in self.files}
        self.missing = {name: uri for name, uri in planned if uri not in self.files}
        for name, uri in list(self.missing.items()):
            free = [new for new in self.files if new not in self.names and (name, new) not in self.apart]
            called = [new for new in free if self._given(new) == name]
            moved = called or [new for new in free if Path(new).name == Path(uri).name]
            if len(moved) == 1:  # `check_planned` looks whether it is the same
                self.names[moved[0]] = name
                del self.missing[name]
        taken = {name for name, _ in planned}
        for uri in self.files:
            if uri not in self.names:
                self.names[uri] = self._new_name(uri, taken)
                taken.add(self.names[uri])

    def _given(self, uri: str) -> str | None:
        """Return the name that the job gives this one file; None if it gives none, or gives it to several."""
        part = self.parts[uri]
        return self._specs[part].name if self._sizes[part] == 1 else None

    def _new_name(self, uri: str, taken: set[str]) -> str:
        index = self.parts[uri]
        given = self._given(uri)
        if given in taken:
            raise JobError(
                f"prompts.sources[{index}].name: expected a name that no other file has, got {given!r} again"
            )
        return given or _free_name(uri, taken, self._specs[index].name)

    def scan(self, marks: Mapping[str, Mark] | None = None) -> Iterator[tuple[Record, Place]]:
        """Yield every record behind what is planned, with the place where it begins.

        Source by source; where sources have weights, interleaved by them.

        Args:
            marks: by source name, how far it is planned; a source that is not in it is new.

        Raises:
            SourceError: a new file has no record at all.
        """
        known = marks or {}
        streams = [self._stream(index, known) for index in range(len(self._specs))]
        if not self.prompts.seeded:
            return chain.from_iterable(streams)
        planned = [0] * len(streams)
        for uri, index in self.parts.items():
            planned[index] += known.get(self.names[uri], Mark()).records
        return merged(streams, [part.weight or 1.0 for part in self._specs], planned)

    def _stream(self, index: int, marks: Mapping[str, Mark]) -> Iterator[tuple[Record, Place]]:
        """Yield what is not planned yet of the files that one entry of `prompts.sources` names."""
        for uri in (uri for uri, part in self.parts.items() if part == index):
            name = self.names[uri]
            mark = marks.get(name, Mark())
            found = self._records(uri, Place(mark.line, mark.offset))
            count = 0
            for count, item in enumerate(found, 1):
                if count > mark.skip:
                    yield item
            if not count and name not in marks:
                raise SourceError(f"{uri}: expected prompt records, got an empty file")

    def _records(self, uri: str, place: Place) -> Iterator[tuple[Record, Place]]:
        for record, where in self.files[uri].records(self.names[uri], place, self.prompts.fields):
            yield fit_for(self.prompts.turns, record, uri), where

    def read(self, batch: Batch) -> list[Record]:
        """Return the batch's records, in plan order; those that the plan drops have `error` set.

        Raises:
            SourceError: a file is gone, or its records are not those that were planned.
        """
        found = [list(self.read_span(batch, span)) for span in batch.spans]
        records = in_batch_order(found, batch.seed, batch.index)
        if self.seal and batch_fingerprint(*self.seal, records, batch.dropped) != batch.fingerprint:
            spans = ", ".join(f"{span.source} from line {span.first_line}" for span in batch.spans)
            raise SourceError(
                f"batch {batch.index} ({spans}): expected the records that were planned, got other content: "
                "a prompt file, or what the job resolves to, was changed; restore it, or rename the job"
            )
        drops = {(drop.source, drop.line): drop for drop in batch.drops}
        return [self._judged(record, drops.get((record.source, record.line))) for record in records]

    def _judged(self, record: Record, drop: Drop | None) -> Record:
        if drop is None:
            return record
        uri = next(uri for uri, name in self.names.items() if name == record.source)
        error = f"{uri}:{record.line}: {_DROPPED[drop.cause].format(drop.first)}"
        return attrs.evolve(record, error=error, code=Code.DUPLICATE)

    def read_span(self, batch: Batch, span: Span) -> Iterator[Record]:
        """Yield the records of one source in a batch, as they are now; raises as `read`."""
        uri = next((uri for uri, name in self.names.items() if name == span.source), None)
        if uri is None:
            raise SourceError(
                f"batch {batch.index}: expected source {span.source!r} "
                f"({self.missing.get(span.source, '?')}) among prompts.sources, got none: "
                "add it again; what is planned stays planned"
            )
        found = self._records(uri, Place(span.first_line, span.offset))
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


def _free_name(uri: str, taken: set[str], given: str | None = None) -> str:
    """Return a name for a file: its stem, or the name that the job gives to several files and the stem."""
    path = Path(uri)
    stem = path.stem or "source"
    if uri.startswith("hf://"):
        stem = re.sub(":+", "-", path.name)
    if given:
        stem = f"{given}-{stem}"
    for name in (stem, f"{path.parent.name}-{stem}"):
        if name not in taken:
            return name
    number = 2
    while f"{stem}-{number}" in taken:
        number += 1
    return f"{stem}-{number}"
