"""The audit of a stored dataset, whole: what `rawseq verify` and the flow `audit-dataset` both are."""

from collections.abc import Callable, Mapping

import attrs

from tasks.errors import DataError, IdentityError, JobError, TokenizerError
from tasks.storage.audit import RowCheck, audit
from tasks.storage.audit_report import AuditReport, Check
from tasks.storage.audit_rows import BatchRows
from tasks.storage.audit_sources import source_notices
from tasks.storage.store import ObjectStore
from tasks.stored import grammar_of, job_of
from tasks.tokens.check import check_rows


def audit_store(
    store: ObjectStore,
    *,
    sources: bool = True,
    credentials: Mapping[str, str] | None = None,
    see: Callable[[BatchRows], None] | None = None,
) -> AuditReport:
    """Re-read everything of a job and compare it with everything; blocks.

    Args:
        store: the job's own prefix.
        sources: also read the prompt files again and tell what is not as planned.
        credentials: of `s3://` prompts, as in `open_store`.
        see: takes the rows of each whole batch, once.

    Raises:
        TokenizerError: the job's tokenizer cannot be loaded here.
        SurroundingsError: the store cannot be read.
    """
    check, stale = _row_check(store)
    report = audit(store, check, see)
    if stale:
        report = with_check(report, stale)
    if not sources:
        return report
    try:
        notices = source_notices(store, job_of(store), credentials)
    except (DataError, JobError):
        return report  # job.json is what is wrong, and the report says so
    return attrs.evolve(report, notices=report.notices + notices)


def with_check(report: AuditReport, check: Check) -> AuditReport:
    """Return the report with one more check."""
    return attrs.evolve(report, checks=(*report.checks, check))


def _row_check(store: ObjectStore) -> tuple[RowCheck | None, Check | None]:
    """Return the grammar as the audit takes it, or the check that says why there is none."""
    try:
        grammar = grammar_of(store)
    except TokenizerError:
        raise
    except (DataError, JobError):
        return None, None  # the audit itself finds what is wrong with job.json
    except IdentityError as error:
        stale = Check("grammar")
        stale.problem("job.json", None, "the tokenizer that made the dataset", error)
        return None, stale
    return lambda inputs, outputs, rows: check_rows(grammar, inputs, outputs, rows), None
