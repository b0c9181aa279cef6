"""Whether files still hold what is planned of them: asked before a source grows or is taken as moved.

A file that looks as it did when its last records were planned (size and time of change, ETag) is not read.
Any other is read as far as it is planned, and each batch is held to its fingerprint. A file of the same name
that holds something else is a source of its own; one that was changed where it is planned is refused: new
records would get the ids of old ones, or be passed over.
"""

from collections.abc import Collection, Mapping

from tasks.errors import SourceError
from tasks.ledger.batch import Batch, Span
from tasks.ledger.fingerprint import span_digest
from tasks.ledger.plan import Plan
from tasks.prompts.sources import Sources


def name_sources(sources: Sources, plan: Plan) -> tuple[str, ...]:
    """Name the sources; one that is gone is found elsewhere only where its planned records are.

    Returns what a person should know: files that are called as one that is gone, and are another.
    """
    told: dict[str, str] = {}
    planned = dict(plan.sources)
    while True:
        sources.know(plan.sources)
        moved = {name for uri, name in sources.names.items() if planned.get(name, uri) != uri}
        other = _first_other(sources, plan, moved)
        if other is None:
            return tuple(f"{line}: its name is {sources.names[uri]!r}" for uri, line in told.items())
        name, uri, where = other
        sources.apart.add((name, uri))
        told[uri] = f"{uri} is not {planned[name]}, moved: it holds other records {where}"


def check_planned(sources: Sources, plan: Plan, looks: Mapping[str, str | None]) -> tuple[str, ...]:
    """Name the sources, and hold those that look changed to the plan; return what a person should know.

    Args:
        sources: the job's.
        plan: as stored.
        looks: by uri, how each file looks; None: unknown.

    Raises:
        SourceError: a planned part of a file was changed, with the file and its lines.
    """
    told = name_sources(sources, plan)
    planned = dict(plan.sources)
    changed = {
        name
        for uri, name in sources.names.items()
        if planned.get(name) == uri and plan.stamps.get(name, "") != looks[uri]
    }
    other = _first_other(sources, plan, changed)
    if other is not None:
        _, uri, where = other
        raise SourceError(
            f"{uri}: expected the records that are planned, got others {where}: restore it. New records "
            "belong behind the planned ones, into a file of another name, or into another job"
        )
    return told


def _first_other(sources: Sources, plan: Plan, suspects: Collection[str]) -> tuple[str, str, str] | None:
    """Return name, uri and lines of the first of some sources that does not hold what is planned."""
    uris = {name: uri for uri, name in sources.names.items()}
    for batch in plan.batches if suspects else ():
        for span in batch.spans:
            if span.source in suspects and not _holds(sources, batch, span):
                where = f"from line {span.first_line} on, among the {span.records} of batch {batch.index}"
                gone = sorted({each.source for each in batch.spans} - uris.keys())
                if gone and not span.digest:
                    where += f" (an older plan, which is compared only with {', '.join(gone)}, which is gone)"
                return span.source, uris[span.source], where
    return None


def _holds(sources: Sources, batch: Batch, span: Span) -> bool:
    """Whether a source still has its records of a batch; what cannot be compared counts as other records.

    A plan of before 2026-12 knows the batch as a whole only: it tells nothing where another source is gone.
    """
    try:
        if span.digest:
            return span_digest(sources.read_span(batch, span)) == span.digest
        sources.read(batch)
    except SourceError as error:
        if isinstance(error.__cause__, OSError):
            raise  # it cannot be read, which says nothing of what it holds
        return False
    return True
