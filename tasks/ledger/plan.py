"""The plan: which source records form which batch. Frozen shapes and their JSON (pure)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from tasks.errors import DataError
from tasks.job.spec import SCHEMA_VERSION
from tasks.ledger.batch import CAUSES, Batch, Batches, batch_json, batch_of

BATCHES_PER_OBJECT: Final = 1_000
"""Parsed, an object of so many takes about 2 MB."""

DROPPED_BYTES: Final = 2 * 2**20
"""A plan object is closed once it names this much of dropped records: parsed, they take ten times it."""


@attrs.frozen(slots=True)
class Mark:
    """How far a source is planned.

    Args:
        line: where its last planned span begins.
        offset: the byte offset of that.
        skip: records of that span.
        records: how many of its records are planned in all.
    """

    line: int = 1
    offset: int = 0
    skip: int = 0
    records: int = 0


@attrs.frozen(slots=True)
class Plan:
    """Every planned batch of a job, by index.

    Args:
        job_id: the job.
        sources: (name, uri) in the order in which they were planned.
        batches: contiguous from batch 0 and record 0.
        sequences: number of plan objects.
        notices: what a person should know about this run's settings against the plan.
        exclude: the addresses of `prompts.exclude` that every plan object was made with; None: no object yet.
        stamps: by source name, how its file looked when records were last planned; plans before had none.
    """

    job_id: str
    sources: tuple[tuple[str, str], ...] = ()
    batches: Batches = attrs.field(factory=Batches)
    sequences: int = 0
    notices: tuple[str, ...] = ()
    exclude: frozenset[str] | None = None
    stamps: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def records(self) -> int:
        """How many source records are planned."""
        return self.batches[-1].stop if self.batches else 0

    def marks(self) -> dict[str, Mark]:
        """Return how far each source is planned."""
        found: dict[str, Mark] = {}
        for batch in self.batches:
            for span in batch.spans:
                before = found[span.source].records if span.source in found else 0
                found[span.source] = Mark(span.first_line, span.offset, span.records, before + span.records)
        return found


def portions(batches: Iterable[Batch]) -> Iterator[list[Batch]]:
    """Yield the batches of one plan object after the other."""
    part: list[Batch] = []
    size = 0
    for batch in batches:
        part.append(batch)
        size += len(batch.dropped)
        if len(part) == BATCHES_PER_OBJECT or size >= DROPPED_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def plan_object(
    job_id: str,
    sequence: int,
    sources: Sequence[tuple[str, str]],
    batches: Sequence[Batch],
    exclude: Sequence[str] = (),
    stamps: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the JSON of one plan object."""
    return {
        **({"exclude": sorted(set(exclude))} if exclude else {}),
        "schema": SCHEMA_VERSION,
        "job_id": job_id,
        "sequence": sequence,
        "first_batch": batches[0].index,
        "sources": [
            {"name": name, "uri": uri} | ({"stamp": stamps[name]} if stamps and name in stamps else {})
            for name, uri in sources
        ],
        "batches": [batch_json(batch) for batch in batches],
    }


def extended(plan: Plan, data: Mapping[str, Any], where: str) -> Plan:
    """Return `plan` with one more plan object.

    Args:
        plan: what the earlier objects say.
        data: the object's JSON.
        where: its key, for messages.

    Raises:
        DataError: a higher schema, another job, a gap, or numbers that contradict each other.
    """
    check_schema(data, where)
    try:
        if (data["job_id"], data["sequence"]) != (plan.job_id, plan.sequences):
            raise DataError(
                f"{where}: expected job {plan.job_id} sequence {plan.sequences}, "
                f"got {data['job_id']} sequence {data['sequence']}"
            )
        batches = plan.batches.with_more(_following(plan, data["batches"], where))
        known = dict(plan.sources) | {source["name"]: source["uri"] for source in data["sources"]}
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{where}: expected a plan object of schema {SCHEMA_VERSION}, got {error!r}"
        ) from error
    excluded = frozenset(data.get("exclude", ()))
    exclude = excluded if plan.exclude is None else plan.exclude & excluded
    now = plan.sequences + 1
    stamps = {**plan.stamps, **{s["name"]: s["stamp"] for s in data["sources"] if "stamp" in s}}
    return Plan(plan.job_id, tuple(known.items()), batches, now, plan.notices, exclude, stamps)


def _following(plan: Plan, items: Iterable[Any], where: str) -> Iterator[Batch]:
    start = plan.records
    for index, item in enumerate(items, len(plan.batches)):
        batch = batch_of(item)
        _check_follows(batch, index, start, where)
        yield batch
        start = batch.stop


def _check_follows(batch: Batch, index: int, start: int, where: str) -> None:
    unknown = sorted({drop.cause for drop in batch.drops} - set(CAUSES))
    if unknown:
        raise DataError(
            f"{where}: expected causes {', '.join(CAUSES)} in batch {index}, got {', '.join(unknown)}"
        )
    records = sum(span.records for span in batch.spans)
    if batch.index != index or batch.start != start or batch.stop - batch.start != records or records < 1:
        raise DataError(
            f"{where}: expected batch {index} from record {start} on, got batch {batch.index} "
            f"[{batch.start},{batch.stop}) with {records} records in its spans"
        )


def check_schema(data: Any, where: str) -> None:
    """Refuse JSON that is no object of a schema version this program knows.

    Raises:
        DataError: not an object, no version, or a higher one.
    """
    version = data.get("schema") if isinstance(data, Mapping) else None
    if not isinstance(version, int) or not 1 <= version <= SCHEMA_VERSION:
        raise DataError(
            f"{where}: expected schema 1 to {SCHEMA_VERSION}, got {version!r}"
            + (" (written by a newer rawseq: use that)" if isinstance(version, int) and version > 1 else "")
        )
