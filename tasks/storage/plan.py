"""The plan: which source records form which batch. Frozen shapes and their JSON (pure)."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import attrs

from tasks.errors import DataError
from tasks.spec import SCHEMA_VERSION

BATCHES_PER_OBJECT: Final = 10_000


class Named(Protocol):
    """What a fingerprint needs of a record."""

    @property
    def name(self) -> str:
        """`<source>:<record id>`."""

    @property
    def digest(self) -> str:
        """Hex sha256 of the record's raw content."""


@attrs.frozen(slots=True)
class Span:
    """Neighbouring records of one source: `records` of them from `first_line` on, at byte `offset`."""

    source: str
    first_line: int
    records: int
    offset: int


@attrs.frozen(slots=True)
class Batch:
    """The unit of retry, checkpoint and commit.

    Args:
        index: number of the batch in the job.
        start: first record, counted in plan order.
        stop: one past the last record.
        fingerprint: hex sha256 over job, what it resolved to, and the records; see `batch_fingerprint`.
        spans: where its records lie; together `stop - start` of them.
    """

    index: int
    start: int
    stop: int
    fingerprint: str
    spans: tuple[Span, ...]

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
    """

    job_id: str
    sources: tuple[tuple[str, str], ...] = ()
    batches: tuple[Batch, ...] = ()
    sequences: int = 0
    notices: tuple[str, ...] = ()

    @property
    def records(self) -> int:
        """How many source records are planned."""
        return self.batches[-1].stop if self.batches else 0

    def last_spans(self) -> dict[str, Span]:
        """Return the last planned span of each source."""
        return {span.source: span for batch in self.batches for span in batch.spans}


def batch_fingerprint(job_id: str, resolved_sha256: str, records: Iterable[Named]) -> str:
    """Return the hex sha256 over job id, what it resolved to, and each record's name and raw content."""
    digest = hashlib.sha256(f"{job_id}\n{resolved_sha256}\n".encode())
    for record in records:
        digest.update(f"{len(record.name)} {record.name} {record.digest}\n".encode())
    return digest.hexdigest()


def plan_object(
    job_id: str, sequence: int, sources: Sequence[tuple[str, str]], batches: Sequence[Batch]
) -> dict[str, Any]:
    """Return the JSON of one plan object."""
    return {
        "schema": SCHEMA_VERSION,
        "job_id": job_id,
        "sequence": sequence,
        "first_batch": batches[0].index,
        "sources": [{"name": name, "uri": uri} for name, uri in sources],
        "batches": [
            {
                "index": batch.index,
                "start": batch.start,
                "stop": batch.stop,
                "fingerprint": batch.fingerprint,
                "spans": [[span.source, span.first_line, span.records, span.offset] for span in batch.spans],
            }
            for batch in batches
        ],
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
            batch = Batch(
                item["index"],
                item["start"],
                item["stop"],
                item["fingerprint"],
                tuple(Span(*span) for span in item["spans"]),
            )
            _check_follows(batch, len(batches), batches[-1].stop if batches else 0, where)
            batches.append(batch)
        known = dict(plan.sources) | {source["name"]: source["uri"] for source in data["sources"]}
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{where}: expected a plan object of schema {SCHEMA_VERSION}, got {error!r}"
        ) from error
    return Plan(plan.job_id, tuple(known.items()), tuple(batches), plan.sequences + 1, plan.notices)


def _check_follows(batch: Batch, index: int, start: int, where: str) -> None:
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
