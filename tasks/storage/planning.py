"""Sources → new batches behind a plan: one scan, nothing written until all of it is seen to be good."""

from collections.abc import Iterator

from tasks.errors import SourceError
from tasks.spec import JobSpec
from tasks.storage.duplicates import HashSpill, refuse_repeated
from tasks.storage.plan import Batch, Plan, Span, batch_fingerprint
from tasks.storage.record import Record
from tasks.storage.source import Place, Sources


def new_batches(sources: Sources, spec: JobSpec, plan: Plan, resolved_sha256: str) -> tuple[Batch, ...]:
    """Return the batches that follow `plan`: what is in the sources, up to the limit, and not yet planned.

    Raises:
        SourceError: a malformed record (unless bad rows are to be rejected), ids that repeat, an empty file.
    """
    limit = spec.prompts.limit
    room = None if limit is None else max(0, limit - plan.records)
    if room == 0:
        return ()
    builder = _Builder(plan, spec, resolved_sha256)
    with HashSpill() as seen:
        for record, place in _unplanned(sources, plan):
            if record.error and spec.prompts.on_bad_row == "stop":
                raise SourceError(record.error)
            seen.add(hash((record.source, record.record_id)))
            builder.add(record, place)
            if builder.records == room:
                break
        batches = builder.finish()
        if batches:
            for record, _ in _planned_before(sources, plan, batches):
                seen.add(hash((record.source, record.record_id)))
        suspects = seen.repeated()
    if suspects:
        refuse_repeated(suspects, _again(sources))
    return batches


def notices(spec: JobSpec, plan: Plan) -> tuple[str, ...]:
    """Return what a person should know: settings that the plan overrules."""
    found = []
    limit = spec.prompts.limit
    if limit is not None and limit < plan.records:
        found.append(f"prompts.limit is {limit}, but {plan.records} records are planned: they stay planned")
    sizes = {batch.stop - batch.start for batch in plan.batches}
    if sizes and spec.batch.rows not in sizes and max(sizes) != spec.batch.rows:
        found.append(f"batch.rows is {spec.batch.rows}: only batches that are new to the plan get that size")
    return tuple(found)


class _Builder:
    """Cuts a stream of records into batches."""

    def __init__(self, plan: Plan, spec: JobSpec, resolved_sha256: str) -> None:
        self._seal = (spec.job_id, resolved_sha256)
        self._rows = spec.batch.rows
        self._index = len(plan.batches)
        self._start = plan.records
        self._open: list[Record] = []
        self._spans: list[Span] = []
        self._done: list[Batch] = []
        self.records = 0

    def add(self, record: Record, place: Place) -> None:
        """Take the next record."""
        last = self._spans[-1] if self._spans else None
        if last is not None and last.source == record.source:
            self._spans[-1] = Span(last.source, last.first_line, last.records + 1, last.offset)
        else:
            self._spans.append(Span(record.source, place.line, 1, place.offset))
        self._open.append(record)
        self.records += 1
        if len(self._open) == self._rows:
            self._close()

    def _close(self) -> None:
        stop = self._start + len(self._open)
        fingerprint = batch_fingerprint(*self._seal, self._open)
        self._done.append(Batch(self._index, self._start, stop, fingerprint, tuple(self._spans)))
        self._index, self._start, self._open, self._spans = self._index + 1, stop, [], []

    def finish(self) -> tuple[Batch, ...]:
        """Return all batches; the last one may be smaller."""
        if self._open:
            self._close()
        return tuple(self._done)


def _unplanned(sources: Sources, plan: Plan) -> Iterator[tuple[Record, Place]]:
    last = plan.last_spans()
    skip = {name: span.records for name, span in last.items()}
    after = {name: Place(span.first_line, span.offset) for name, span in last.items()}
    for record, place in sources.scan(after):
        if skip.get(record.source):
            skip[record.source] -= 1
        else:
            yield record, place


def _planned_before(
    sources: Sources, plan: Plan, batches: tuple[Batch, ...]
) -> Iterator[tuple[Record, Place]]:
    """Yield the planned records of the sources that have new ones: their ids count for uniqueness."""
    planned = plan.last_spans()
    grown = {span.source for batch in batches for span in batch.spans} & set(planned)
    counts = dict.fromkeys(grown, 0)
    for batch in plan.batches:
        for span in batch.spans:
            if span.source in grown:
                counts[span.source] += span.records
    for uri, file in sources.files.items():
        name = sources.names[uri]
        found = file.records(name, Place(), sources.prompts.fields)
        for _ in range(counts.get(name, 0)):
            item = next(found, None)
            if item is None:
                break
            yield item


def _again(sources: Sources) -> Iterator[tuple[Record, str]]:
    for uri, file in sources.files.items():
        for record, _ in file.records(sources.names[uri], Place(), sources.prompts.fields):
            yield record, uri
