"""The audit of a stored dataset, whole: what `rawseq verify` and the flow `audit-dataset` both are."""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Final

import attrs

from tasks.audit.checks import BatchRows
from tasks.audit.report import AuditReport, Check
from tasks.audit.reread import RowCheck, audit
from tasks.audit.rescoring import Rescore, rescored
from tasks.audit.sample import RowSample
from tasks.audit.sources import source_notices
from tasks.dataset.stored import grammar_of, job_of
from tasks.errors import DataError, IdentityError, JobError, LaterError, TokenizerError
from tasks.grammar.check import check_rows
from tasks.job.spec import StoreSpec
from tasks.store.contract import ObjectStore
from tasks.store.opening import find_job

PROBLEMS_SHOWN: Final = 20
"""Problems of one check in the table of findings."""


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
    check, earlier, stale = _row_checks(store)
    report = audit(store, check, see, earlier)
    if stale:
        report = with_check(report, stale)
    if not sources:
        return report
    try:
        notices = source_notices(store, job_of(store), credentials)
    except (DataError, JobError):
        return report  # job.json is what is wrong, and the report says so
    return attrs.evolve(report, notices=report.notices + notices)


async def audited_at(
    store: StoreSpec, credentials: Mapping[str, str] | None, rows: int, seed: int
) -> tuple[AuditReport, RowSample]:
    """Audit the job at an address; return the report, and so many of its rows chosen by hash.

    When it is cancelled, the thread that reads gives up before its next batch.
    """
    sample, stop = RowSample(rows, seed), threading.Event()

    def see(batch: BatchRows) -> None:
        if stop.is_set():
            raise LaterError(f"{store.uri}: the audit was stopped before its end")
        sample.see(batch)

    def audit_whole() -> AuditReport:
        with closing(find_job(store, credentials=credentials)) as opened:
            return audit_store(opened, credentials=credentials, see=see)

    try:
        return await asyncio.to_thread(audit_whole), sample
    finally:
        stop.set()


async def rescored_at(
    store: StoreSpec,
    credentials: Mapping[str, str] | None,
    report: AuditReport,
    sample: RowSample,
    ask: Rescore,
) -> AuditReport:
    """Return the report with the check `rescored`, for the job at an address; raises as `rescore`."""
    with closing(await asyncio.to_thread(find_job, store, credentials=credentials)) as opened:
        return await rescored(report, opened, sample.rows(), ask)


def findings(report: AuditReport) -> list[dict[str, str]]:
    """Return the report as rows of a table: every check, below each its first problems, the last line."""
    table = []
    for check in report.checks:
        passed = "no" if check.failed else "yes"
        table.append({"check": check.name, "passed": passed, "finding": f"{check.failed} of {check.checked}"})
        for problem in check.problems[:PROBLEMS_SHOWN]:
            table.append({"check": check.name, "passed": "", "finding": str(problem)})
    table += [{"check": "notice", "passed": "", "finding": notice} for notice in report.notices]
    verdict = "yes" if report.trainable else "no"
    return [*table, {"check": "trainable", "passed": verdict, "finding": report.reason}]


def with_check(report: AuditReport, check: Check) -> AuditReport:
    """Return the report with one more check."""
    return attrs.evolve(report, checks=(*report.checks, check))


def _row_checks(store: ObjectStore) -> tuple[RowCheck | None, Sequence[RowCheck], Check | None]:
    """Return the grammar as the audit takes it, by the rules of today and of each earlier time.

    Or, third, the check that says why there is none.
    """
    try:
        grammar = grammar_of(store)
    except TokenizerError:
        raise
    except (DataError, JobError):
        return None, (), None  # the audit itself finds what is wrong with job.json
    except IdentityError as error:
        stale = Check("grammar")
        stale.problem("job.json", None, "the tokenizer that made the dataset", error)
        return None, (), stale
    before = grammar.earlier
    rules = partial(check_rows, before), partial(check_rows, before, earlier=True)
    return partial(check_rows, grammar), rules, None
