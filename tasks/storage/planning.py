"""Sources → new batches behind a plan: one scan, nothing written until all of it is seen to be good."""

from bisect import bisect_right
from collections.abc import Collection, Iterator

import attrs
import orjson

from tasks.errors import SourceError
from tasks.spec import JobSpec
from tasks.storage.duplicates import HashSpill, PromptSpill, refuse_repeated
from tasks.storage.exclusion import read_exclusion
from tasks.storage.fingerprint import batch_fingerprint, with_dropped
from tasks.storage.mixture import in_batch_order
from tasks.storage.plan import Batch, Drop, Plan, Span
from tasks.storage.record import Record
from tasks.storage.sameness import opening_keys, prompt_key
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
    with HashSpill() as ids, PromptSpill() as prompts:
        builder = _Builder(plan, spec, resolved_sha256, prompts, read_exclusion(sources))
        for record, place in sources.scan(plan.marks()):
            if record.error and spec.prompts.on_bad_row == "stop":
                raise SourceError(record.error)
            ids.add(hash((record.source, record.record_id)))
            builder.add(record, place)
            if builder.records == room:
                break
        batches = builder.finish()
        if batches:
            _note_planned(sources, plan, batches, ids, prompts if builder.rejects else None)
        suspects = ids.repeated()
        if suspects:
            refuse_repeated(suspects, _again(sources))
        return _without_repeats(plan, batches, prompts)


def notices(
    spec: JobSpec, plan: Plan, missing: Collection[str] = (), rows_at_first: int | None = None
) -> tuple[str, ...]:
    """Return what a person should know: settings that the plan overrules.

    Args:
        spec: the job.
        plan: as stored, before it grows.
        missing: names of planned sources that are no longer among the job's.
        rows_at_first: `batch.rows` when the job began; None: not known.
    """
    found = []
    limit = spec.prompts.limit
    if limit is not None and limit < plan.records:
        found.append(f"prompts.limit is {limit}, but {plan.records} records are planned: they stay planned")
    sizes = {batch.stop - batch.start for batch in plan.batches}
    if sizes and spec.batch.rows not in {*sizes, rows_at_first}:  # the last batch of a plan may be smaller
        found.append(f"batch.rows is {spec.batch.rows}: only batches that are new to the plan get that size")
    late = sorted(set(spec.prompts.exclude) - (plan.exclude or set()))
    if plan.records and late:
        found.append(
            f"prompts.exclude: {', '.join(late)} came after records were planned: of those, none is excluded "
            "by it"
        )
    if missing and spec.prompts.duplicates == "reject":
        named = ", ".join(sorted(missing))
        found.append(f"planned sources that are gone are not searched for duplicates of new records: {named}")
    return tuple(found)


class _Builder:
    """Cuts a stream of records into batches, and notes the prompts of those that it closes."""

    def __init__(
        self,
        plan: Plan,
        spec: JobSpec,
        resolved_sha256: str,
        prompts: PromptSpill,
        excluded: dict[bytes, str],
    ) -> None:
        self._seal = (spec.job_id, resolved_sha256)
        self._rows = spec.batch.rows
        self._seed = spec.sampling.seed if spec.prompts.seeded else None
        self._index = len(plan.batches)
        self._start = plan.records
        self._prompts = prompts
        self._excluded = excluded
        self._open: dict[str, list[Record]] = {}
        self._spans: dict[str, Span] = {}
        self._done: list[Batch] = []
        self.rejects = spec.prompts.duplicates == "reject"
        self.records = 0

    def add(self, record: Record, place: Place) -> None:
        """Take the next record."""
        span = self._spans.get(record.source) or Span(record.source, place.line, 0, place.offset)
        self._spans[record.source] = attrs.evolve(span, records=span.records + 1)
        self._open.setdefault(record.source, []).append(record)
        self.records += 1
        if self.records % self._rows == 0:
            self._close()

    def _close(self) -> None:
        seed = self._seed if len(self._spans) > 1 else None
        records = in_batch_order(list(self._open.values()), seed, self._index)
        dropped = b"".join(map(_line, self._drops(records)))
        stop = self._start + len(records)
        fingerprint = batch_fingerprint(*self._seal, records)
        spans = tuple(self._spans.values())
        self._done.append(Batch(self._index, self._start, stop, fingerprint, spans, seed, dropped))
        self._index, self._start, self._open, self._spans = self._index + 1, stop, {}, {}

    def _drops(self, records: list[Record]) -> Iterator[Drop]:
        """Yield what is excluded, and note the prompts of all others."""
        for number, record in enumerate(records, self._start):
            if record.error:
                continue
            where = self._exclusion(record)
            if where:
                yield Drop(record.source, record.line, "excluded", where)
            elif self.rejects:
                self._prompts.add(prompt_key(record), number, record)

    def _exclusion(self, record: Record) -> str | None:
        if not self._excluded:
            return None
        return next((self._excluded[key] for key in opening_keys(record) if key in self._excluded), None)

    def finish(self) -> tuple[Batch, ...]:
        """Return all batches; the last one may be smaller. What is dropped is not yet as it is stored."""
        if self._open:
            self._close()
        return tuple(self._done)


def _note_planned(
    sources: Sources, plan: Plan, batches: tuple[Batch, ...], ids: HashSpill, prompts: PromptSpill | None
) -> None:
    """Note the planned records: ids of the sources that have new ones, and the prompts of all."""
    grown = {span.source for batch in batches for span in batch.spans}
    dropped = {(drop.source, drop.line) for batch in plan.batches for drop in batch.drops}
    marks = plan.marks()
    number = 0
    for uri, file in sources.files.items():
        name = sources.names[uri]
        if name not in marks or (prompts is None and name not in grown):
            continue
        found = file.records(name, Place(), sources.prompts.fields)
        for _, (record, _) in zip(range(marks[name].records), found, strict=False):
            if name in grown:
                ids.add(hash((record.source, record.record_id)))
            if prompts is not None and not record.error and (name, record.line) not in dropped:
                prompts.add(prompt_key(record), number, record)
            number += 1


def _without_repeats(plan: Plan, batches: tuple[Batch, ...], prompts: PromptSpill) -> tuple[Batch, ...]:
    """Return the new batches without the records whose prompt came before; their fingerprints say so."""
    lines = [bytearray(batch.dropped) for batch in batches]
    starts = [batch.start for batch in batches]
    for repeat in prompts.repeats():
        if repeat.number >= plan.records:
            drop = Drop(repeat.source, repeat.line, "duplicate", repeat.first)
            lines[bisect_right(starts, repeat.number) - 1] += _line(drop)
    return tuple(_sealed(batch, bytes(found)) for batch, found in zip(batches, lines, strict=True))


def _line(drop: Drop) -> bytes:
    return orjson.dumps(attrs.astuple(drop)) + b"\n"


def _sealed(batch: Batch, lines: bytes) -> Batch:
    if not lines:
        return batch
    dropped = orjson.dumps(sorted(map(orjson.loads, lines.splitlines())))
    return attrs.evolve(batch, dropped=dropped, fingerprint=with_dropped(batch.fingerprint, dropped))


def _again(sources: Sources) -> Iterator[tuple[Record, str]]:
    for uri, file in sources.files.items():
        for record, _ in file.records(sources.names[uri], Place(), sources.prompts.fields):
            yield record, uri
