"""Sources → new batches behind a plan: one scan, nothing written until all of it is seen to be good."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from itertools import islice

import attrs
import orjson

from tasks.errors import SourceError
from tasks.job.spec import JobSpec
from tasks.ledger.batch import Batch, Batches, Drop, Span
from tasks.ledger.fingerprint import batch_fingerprint, span_digest, with_dropped
from tasks.ledger.ledger import Ledger
from tasks.ledger.plan import Plan
from tasks.prompts.duplicates import opening_keys, prompt_key
from tasks.prompts.exclusion import read_exclusion
from tasks.prompts.interleave import in_batch_order
from tasks.prompts.planned import check_planned
from tasks.prompts.record import Place, Record
from tasks.prompts.sources import Sources
from tasks.rows.repeats import HashSpill, PromptSpill, refuse_repeated


def extend_plan(ledger: Ledger, sources: Sources, spec: JobSpec, resolved_sha256: str) -> Plan:
    """Append batches for what the sources hold beyond the plan, and return all of it.

    Scans everything that is new before the first object is written. When another run extends the plan at the
    same time, the first wins and the rest is planned behind it.

    Raises:
        SourceError: see `new_batches`.
        DataError: a part of the plan is gone.
    """
    sources.seal = (ledger.job_id, resolved_sha256)
    plan = ledger.plan_of(ledger.committed())
    rows = ledger.rows_at_first()
    while True:
        looks = {uri: file.stamp() for uri, file in sources.files.items()}  # before any is read
        apart = check_planned(sources, plan, looks)
        before = (*notices(spec, plan, sources.missing, rows), *apart)
        stamps = {sources.names[uri]: look for uri, look in looks.items() if look is not None}
        batches = new_batches(sources, spec, plan, resolved_sha256)
        grown = ledger.write_plan(plan, sources.names, batches, sources.prompts.exclude, stamps)
        if grown is not None:
            return attrs.evolve(grown, notices=before)
        plan = ledger.plan()


def new_batches(sources: Sources, spec: JobSpec, plan: Plan, resolved_sha256: str) -> Batches:
    """Return the batches that follow `plan`: what is in the sources, up to the limit, and not yet planned.

    Raises:
        SourceError: a malformed record (unless bad rows are to be rejected), ids that repeat, an empty file.
    """
    limit = spec.prompts.limit
    room = None if limit is None else max(0, limit - plan.records)
    if room == 0:
        return Batches()
    with HashSpill() as ids, PromptSpill() as prompts:
        builder = _Builder(plan, spec, resolved_sha256, prompts, read_exclusion(sources))
        batches = Batches().with_more(builder.cut(_good(sources, spec, plan, ids), room))
        if batches:
            _note_planned(sources, plan, builder.grown, ids, prompts if builder.rejects else None)
        suspects = ids.repeated()
        if suspects:
            refuse_repeated(suspects, _again(sources))
        return _without_repeats(plan, batches, prompts, spec.batch.rows)


def _good(sources: Sources, spec: JobSpec, plan: Plan, ids: HashSpill) -> Iterator[tuple[Record, Place]]:
    """Yield the records that are not planned, and note their ids."""
    for record, place in sources.scan(plan.marks()):
        if record.error and spec.prompts.on_bad_row == "stop":
            raise SourceError(record.error)
        ids.add(hash((record.source, record.record_id)))
        yield record, place


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
        self.rejects = spec.prompts.duplicates == "reject"
        self.grown: set[str] = set()

    def cut(self, found: Iterable[tuple[Record, Place]], room: int | None) -> Iterator[Batch]:
        """Yield one batch after the other, the last of which may be smaller; `room`: most records.

        What is dropped of them is not yet as it is stored.
        """
        for number, (record, place) in enumerate(islice(found, room), 1):
            self._add(record, place)
            if number % self._rows == 0:
                yield self._close()
        if self._open:
            yield self._close()

    def _add(self, record: Record, place: Place) -> None:
        span = self._spans.get(record.source) or Span(record.source, place.line, 0, place.offset)
        self._spans[record.source] = attrs.evolve(span, records=span.records + 1)
        self._open.setdefault(record.source, []).append(record)

    def _close(self) -> Batch:
        seed = self._seed if len(self._spans) > 1 else None
        records = in_batch_order(list(self._open.values()), seed, self._index)
        dropped = b"".join(map(_line, self._drops(records)))
        stop = self._start + len(records)
        fingerprint = batch_fingerprint(*self._seal, records)
        spans = tuple(
            attrs.evolve(span, digest=span_digest(self._open[name])) for name, span in self._spans.items()
        )
        self.grown.update(self._spans)
        batch = Batch(self._index, self._start, stop, fingerprint, spans, seed, dropped)
        self._index, self._start, self._open, self._spans = self._index + 1, stop, {}, {}
        return batch

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


def _note_planned(
    sources: Sources, plan: Plan, grown: set[str], ids: HashSpill, prompts: PromptSpill | None
) -> None:
    """Note the planned records: ids of the sources that have new ones, and the prompts of all."""
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


def _without_repeats(plan: Plan, batches: Batches, prompts: PromptSpill, rows: int) -> Batches:
    """Return the new batches, of `rows` each, without the records whose prompt came before.

    Their fingerprints say so. The names of what is dropped are in memory until then.
    """
    lines: defaultdict[int, bytearray] = defaultdict(bytearray)
    for repeat in prompts.repeats():
        if repeat.number >= plan.records:
            drop = Drop(repeat.source, repeat.line, "duplicate", repeat.first)
            lines[len(plan.batches) + (repeat.number - plan.records) // rows] += _line(drop)
    sealed = (_sealed(batch, batch.dropped + lines.get(batch.index, b"")) for batch in batches)
    return Batches().with_more(sealed)


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
