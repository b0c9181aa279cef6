"""What is planned against the prompt files of today: a changed or missing file is told, never blamed on rows.

Rows say for themselves what was sent. But a job whose prompts were edited or renamed cannot go on, and its
rows cannot be led back to their records: somebody should know.
"""

from collections.abc import Iterator, Mapping

from tasks.errors import DataError, RawseqError, SourceError
from tasks.job.spec import JobSpec
from tasks.ledger.ledger import Ledger
from tasks.ledger.plan import Plan
from tasks.prompts.opening import open_sources
from tasks.prompts.planned import name_sources
from tasks.prompts.sources import Sources
from tasks.store.contract import ObjectStore, canonical, sha256_hex

_TOLD = 5
"""Batches whose difference is told one by one; the others are counted."""


def source_notices(
    store: ObjectStore, spec: JobSpec, credentials: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Read the prompt files again, batch by batch, and return what is not as planned, one sentence each.

    Args:
        store: the job's own prefix.
        spec: the stored job; relative prompt files are looked for below the working folder.
        credentials: of `s3://` prompts, as in `open_store`.
    """
    ledger = Ledger(store, spec.job_id)
    try:
        plan, resolved = ledger.plan(), ledger.job()["resolved"]
    except DataError:
        return ()  # the audit itself says so
    try:
        sources = open_sources(spec.prompts, spec.store, credentials)
        sources.seal = (spec.job_id, sha256_hex(canonical(resolved)))
        name_sources(sources, plan)
    except RawseqError as error:
        return (f"prompts: not compared with the plan: {error}",)
    moved = (
        f"prompts: source {name!r} was planned from {uri}; that file is not among prompts.sources now"
        for name, uri in sources.missing.items()
    )
    return (*moved, *_cut(_changed(plan, sources)))


def _changed(plan: Plan, sources: Sources) -> Iterator[str]:
    """Yield what is wrong with each batch whose records are not those that were planned."""
    for batch in plan.batches:
        if any(span.source in sources.missing for span in batch.spans):
            continue
        try:
            sources.read(batch)
        except SourceError as error:
            yield f"prompts: {error}"


def _cut(notices: Iterator[str]) -> Iterator[str]:
    count = 0
    for count, notice in enumerate(notices, 1):
        if count <= _TOLD:
            yield notice
    if count > _TOLD:
        yield f"prompts: and {count - _TOLD} more batches whose records are not those that were planned"
