"""The plan: which source records form which batch. Frozen shapes and their JSON (pure)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import attrs
import orjson

from tasks.errors import DataError
from tasks.spec import SCHEMA_VERSION

BATCHES_PER_OBJECT: Final = 10_000

DROPPED_BYTES: Final = 2 * 2**20
"""A plan object is closed once it names this much of dropped records: parsed, they take ten times it."""

CAUSES: Final = ("duplicate", "excluded")
"""Why nothing is generated for a planned record."""


@attrs.frozen(slots=True)
class Span:
    """Neighbouring records of one source: `records` of them from `first_line` on, at byte `offset`."""

    source: str
    first_line: int
    records: int
    offset: int


@attrs.frozen(slots=True)
class Drop:
    """A planned record that nothing is generated for.

    Args:
        source: name of its source.
        line: its 1-based line or row there.
        cause: `duplicate`: an earlier record has its messages and tools; `excluded`: an excluded file has it.
        first: name of that earlier record, or file:line of the exclusion.
    """

    source: str
    line: int
    cause: str
    first: str


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
class Batch:
    """The unit of retry, checkpoint and commit.

    Args:
        index: number of the batch in the job.
        start: first record, counted in plan order.
        stop: one past the last record.
        fingerprint: hex sha256 over job, what it resolved to, and the records; see `batch_fingerprint`.
        spans: where its records lie; together `stop - start` of them.
        seed: of the order in which the spans' records are interleaved (`interleaving`); None: span by span.
        dropped: its records that nothing is generated for, as JSON: there may be very many; see `drops`.
    """

    index: int
    start: int
    stop: int
    fingerprint: str
    spans: tuple[Span, ...]
    seed: int | None = None
    dropped: bytes = b""

    generation: ClassVar[int] = 0
    """Of the receipt that a batch of the plan gets: its first."""

    reason: ClassVar[str] = ""

    @property
    def drops(self) -> tuple[Drop, ...]:
        """Its records that nothing is generated for."""
        return tuple(Drop(*drop) for drop in orjson.loads(self.dropped or b"[]"))

    @property
    def name(self) -> str:
        """Name for people: number and record range."""
        return f"{self.index:06d} [{self.start},{self.stop})"


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
    """

    job_id: str
    sources: tuple[tuple[str, str], ...] = ()
    batches: tuple[Batch, ...] = ()
    sequences: int = 0
    notices: tuple[str, ...] = ()
    exclude: frozenset[str] | None = None

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
) -> dict[str, Any]:
    """Return the JSON of one plan object."""
    return {
        **({"exclude": sorted(set(exclude))} if exclude else {}),
        "schema": SCHEMA_VERSION,
        "job_id": job_id,
        "sequence": sequence,
        "first_batch": batches[0].index,
        "sources": [{"name": name, "uri": uri} for name, uri in sources],
        "batches": [_batch_json(batch) for batch in batches],
    }


def _batch_json(batch: Batch) -> dict[str, Any]:
    return {
        "index": batch.index,
        "start": batch.start,
        "stop": batch.stop,
        "fingerprint": batch.fingerprint,
        "spans": [[span.source, span.first_line, span.records, span.offset] for span in batch.spans],
        **({} if batch.seed is None else {"seed": batch.seed}),
        **({"dropped": orjson.Fragment(batch.dropped)} if batch.dropped else {}),
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
    batches = list(plan.batches)
    try:
        if (data["job_id"], data["sequence"]) != (plan.job_id, plan.sequences):
            raise DataError(
                f"{where}: expected job {plan.job_id} sequence {plan.sequences}, "
                f"got {data['job_id']} sequence {data['sequence']}"
            )
        for item in data["batches"]:
            batch = _batch(item)
            _check_follows(batch, len(batches), batches[-1].stop if batches else 0, where)
            batches.append(batch)
        known = dict(plan.sources) | {source["name"]: source["uri"] for source in data["sources"]}
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{where}: expected a plan object of schema {SCHEMA_VERSION}, got {error!r}"
        ) from error
    excluded = frozenset(data.get("exclude", ()))
    exclude = excluded if plan.exclude is None else plan.exclude & excluded
    now = plan.sequences + 1
    return Plan(plan.job_id, tuple(known.items()), tuple(batches), now, plan.notices, exclude)


def _batch(item: Mapping[str, Any]) -> Batch:
    return Batch(
        item["index"],
        item["start"],
        item["stop"],
        item["fingerprint"],
        tuple(Span(*span) for span in item["spans"]),
        item.get("seed"),
        orjson.dumps(item["dropped"]) if item.get("dropped") else b"",
    )


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
