"""Every Prefect task, in chain order: log a line, call one function, return its value.

Prefect's state is the view; what is done is decided by the ledger. So no step is cached or persisted, and
each failure is retried in one layer only: rows in `dispatch`, objects in the store's deadline loop, and here
only `generate_tokens`, which resumes from its journal.
"""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any, TypeVar

import httpx
import orjson
from prefect import get_client, get_run_logger, runtime, task
from prefect.artifacts import acreate_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.events import emit_event
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.tasks import Task

from tasks.audit import audit as auditing
from tasks.audit.report import AuditReport
from tasks.audit.rescoring import Rescore
from tasks.audit.sample import RowSample
from tasks.errors import JobError, RawseqError
from tasks.export import open as exporting
from tasks.export.options import ExportedStore, ExportOptions, ExportPlace
from tasks.fleet.ensure import ServerReport
from tasks.job.redaction import note_secret
from tasks.job.spec import ModelSpec, ServersSpec, StoreSpec
from tasks.ledger.batch import Batch, Batches
from tasks.ledger.server_lock import server_locks
from tasks.report.summary import Summary
from tasks.rows.records import CheckedBatch
from tasks.run import batch as batches
from tasks.run import commit as committing
from tasks.run import maintain as maintaining
from tasks.run import retry as retrying
from tasks.run.batch import Numbered, RenderedBatch
from tasks.run.commit import BatchFiles
from tasks.run.maintain import Tended, Users
from tasks.run.retry import Again, Retry
from tasks.run.run import current_run

STEP: dict[str, Any] = {"cache_policy": NO_CACHE, "persist_result": False}
"""What every step has in common: the ledger decides what is done, never Prefect's cache."""

OTHERS_SECONDS = 5.0
"""How long batches of other workers are left alone before they are looked at again."""

ROOM_SECONDS = 0.5
"""How often a run that waits for room in its journals looks again."""

Unit = TypeVar("Unit", bound=Numbered)

UNSEEN = (PrefectException, httpx.HTTPError, OSError)
"""How a call to the Prefect server fails in an outage: the view is lost for a while, the run goes on."""

CREDENTIAL_KEYS = ("aws_access_key_id", "aws_secret_access_key")

GENERATE_RETRY_SECONDS = [10.0, 60.0, 300.0]
"""Waits between attempts of the generate step; each resumes from the journal."""


async def _may_help(task_: Task[Any, Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Say whether a retry can help: only errors that say so of themselves (`RawseqError.retry`)."""
    del task_, task_run
    error = await state.aresult(raise_on_failure=False)
    return isinstance(error, RawseqError) and error.retry


async def load_credentials(store: StoreSpec) -> dict[str, str] | None:
    """Read S3 credentials from the Prefect block that the job names; None: the AWS chain is used.

    `NAME` is a Secret block with a JSON object, `aws-credentials/NAME` an AwsCredentials block. Its stored
    values are read, so prefect-aws need not be installed here.

    Raises:
        JobError: when the block is missing or does not hold the two AWS keys.
    """
    if store.credentials_block is None:
        return None
    where = f"store.credentials_block: block {store.credentials_block!r}"
    kind, _, name = store.credentials_block.rpartition("/")
    try:
        async with get_client() as client:
            block = await client.read_block_document_by_name(name, kind or "secret")
    except ObjectNotFound:
        raise JobError(f"{where}: expected an existing block, found none of that name and type") from None
    value: Any = block.data.get("value") if not kind else block.data
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            raise JobError(f"{where}: expected a JSON object, got other text") from None
    missing = [key for key in CREDENTIAL_KEYS if not isinstance(value, dict) or not value.get(key)]
    if missing:
        raise JobError(
            f"{where}: expected an object with {', '.join(CREDENTIAL_KEYS)}; missing {', '.join(missing)}"
        )
    known = (*CREDENTIAL_KEYS, "aws_session_token")
    credentials = {key: str(value[key]) for key in known if value.get(key)}
    for key in known[1:]:
        note_secret(credentials.get(key))
    return credentials


@task(name="plan_batches", task_run_name="plan_batches", **STEP)
async def plan_batches() -> Batches:
    """Write what is new into the plan; return the batches that the ledger does not list."""
    run = current_run()
    log = get_run_logger()
    pending = await run.in_thread(batches.plan, run)
    assert run.plan is not None
    committed = len(run.plan.batches) - len(pending)
    log.info("%d batches planned, %d committed, %d to do", len(run.plan.batches), committed, len(pending))
    log.info("store %s: %s", run.store.uri, run.store_probe.as_json()["modes"])
    for notice in run.plan.notices:
        log.warning(notice)
    return pending


@task(name="plan_range", task_run_name="plan_range {start}-{stop}", **STEP)
async def plan_range(start: int, stop: int, again: Again | None) -> Sequence[Numbered]:
    """Read the plan as it is; return what of [start, stop) has no receipt, or is to be made again."""
    run = current_run()
    planned = (batches.plan_range, start, stop) if again is None else (retrying.plan_again, again)
    pending: Sequence[Numbered] = await run.in_thread(planned[0], run, *planned[1:])
    get_run_logger().info("batches [%d,%d): %d to do", start, stop, len(pending))
    return pending


@task(name="ensure_servers", task_run_name="ensure_servers", **STEP)
async def ensure_servers(sharers: int = 1) -> tuple[ServerReport, ...]:
    """Wait for the servers, switch reasoning parsers off as the job allows, probe each, open the fleet.

    Args:
        sharers: flow runs that use the servers at once: each takes its share of their windows.
    """
    run = current_run()
    log = get_run_logger()

    def say(line: str) -> None:
        log.info(line)
        run.tell(line)

    reports = await batches.open_fleet(run, say, sharers)
    for report in reports:
        say("\n".join(report.lines()))
        if report.restarted is not None:
            _tell_restart(report.url, report.restarted.lines()[0])
    return reports


def _tell_restart(url: str, evidence: str) -> None:
    """Emit the event that automations wait for (`deployments/automations.py`); never blocks, never fails."""
    resource = {"prefect.resource.id": f"rawseq.server.{url}", "prefect.resource.name": url}
    emit_event("rawseq.server.restarted", resource=resource, payload={"evidence": evidence})


@task(name="render_prompts", task_run_name="render_prompts {batch.name}", **STEP)
async def render_prompts(batch: Batch) -> RenderedBatch:
    """Read a batch's records and render the prompts that need no earlier answer."""
    run = current_run()
    rendered = await run.in_thread(batches.render, run, batch)
    _note_opened(rendered)
    return rendered


def _note_opened(rendered: RenderedBatch) -> None:
    records = rendered.batch.stop - rendered.batch.start
    current_run().progress.opened(records, len(rendered.turns.row_ids), len(rendered.journal.done))


@task(name="plan_retries", task_run_name="plan_retries", **STEP)
async def plan_retries(numbers: Sequence[int], codes: Sequence[str], server: str = "") -> tuple[Retry, ...]:
    """Find the batches to make again: without a receipt, named, with rejected rows, with a server's rows."""
    run = current_run()
    retries = await run.in_thread(retrying.plan_retries, run, numbers, codes, server)
    get_run_logger().info("%d batches again: %s", len(retries), ", ".join(r.name for r in retries[:20]))
    return retries


@task(name="plan_continuations", cache_policy=NO_CACHE, persist_result=False)
async def plan_continuations(more: int) -> tuple[Retry, ...]:
    """Find the batches with rows that were cut by length."""
    run = current_run()
    retries = await run.in_thread(retrying.plan_continuations, run, more)
    get_run_logger().info("%d batches have cut rows", len(retries))
    return retries


@task(name="render_again", task_run_name="render_again {retry.name}", **STEP)
async def render_again(retry: Retry) -> RenderedBatch:
    """Open a batch again, with the rows that stay already in its journal."""
    run = current_run()
    rendered = await run.in_thread(retrying.render_again, run, retry)
    _note_opened(rendered)
    return rendered


@task(
    name="generate_tokens",
    task_run_name="generate_tokens {rendered.batch.name}",
    retries=len(GENERATE_RETRY_SECONDS),
    retry_delay_seconds=GENERATE_RETRY_SECONDS,
    retry_condition_fn=_may_help,
    **STEP,
)
async def generate_tokens(rendered: RenderedBatch) -> None:
    """Make every row of the batch that its journal does not hold; leave them in the journal."""
    resumed = await batches.generate(current_run(), rendered)
    rows = len(rendered.turns.row_ids)
    get_run_logger().info("%d rows, %d of them from the journal", rows, resumed)


@task(name="check_tokens", task_run_name="check_tokens {rendered.batch.name}", **STEP)
async def check_tokens(rendered: RenderedBatch) -> CheckedBatch:
    """Give every row of the batch its verdict."""
    run = current_run()
    checked = await run.in_thread(batches.check, run, rendered)
    batches.note_verdicts(run, checked)
    rejected = len(checked) - int(checked.accepted.sum())
    if rejected:
        codes = sorted(
            {v.code for v, good in zip(checked.verdicts, checked.accepted, strict=True) if not good}
        )
        get_run_logger().warning("%d of %d rows rejected: %s", rejected, len(checked), ", ".join(codes))
    return checked


@task(name="upload_shard", task_run_name="upload_shard {rendered.batch.name}", **STEP)
async def upload_shard(rendered: RenderedBatch, checked: CheckedBatch) -> BatchFiles:
    """Encode the batch's files and put each under the sha256 of its bytes."""
    run = current_run()
    return await run.in_thread(committing.upload, run, checked)


@task(name="commit_batch", task_run_name="commit_batch {rendered.batch.name}", **STEP)
async def commit_batch(rendered: RenderedBatch, files: BatchFiles) -> None:
    """Write the receipt, last and only if absent; then drop the journal."""
    run = current_run()
    receipt = await run.in_thread(committing.commit, run, rendered, files)
    run.progress.committed(rendered.batch.stop - rendered.batch.start)
    get_run_logger().info("committed %d rows as %s", receipt.rows["total"], receipt.key)


async def journal_room() -> None:
    """Wait while the journals hold more of the local disk than they may, until an open batch is committed."""
    run = current_run()
    limit = int(run.spec.batch.journal_gigabytes * 1e9)
    told = False
    while held := await run.in_thread(run.keeper.crowded, limit):
        if not told:
            get_run_logger().warning(
                "the journals hold %.3g GB, more than batch.journal_gigabytes = %.3g: no further batch is "
                "opened until one is committed",
                held / 1e9,
                limit / 1e9,
            )
            told = True
        await asyncio.sleep(ROOM_SECONDS)


async def left_by_others(units: Sequence[Unit]) -> tuple[tuple[Unit, ...], list[tuple[int, str]]]:
    """Return which batches that other workers had are still open, after a moment, and what cannot be made.

    That is (batch, error) of those whose generation another worker has made for another reason.
    """
    run = current_run()
    left, overtaken = await run.in_thread(retrying.settled, run, units)
    if left:
        await asyncio.sleep(OTHERS_SECONDS)
    return left, overtaken


@task(name="publish_dataset", task_run_name="publish_dataset", **STEP)
async def publish_dataset(failures: Sequence[tuple[int, str]]) -> Summary:
    """Write index, card and page of what is committed; return what it adds up to."""
    run = current_run()
    summary, published = await run.in_thread(committing.publish, run, tuple(failures))
    run.summary, run.published = summary, published
    get_run_logger().info("\n".join(published.lines()))
    return summary


AUDIT: dict[str, Any] = STEP | {
    "retries": 2,
    "retry_delay_seconds": [10.0, 60.0],
    "retry_condition_fn": _may_help,
}


@task(name="audit_store", task_run_name="audit_store {store.uri}", **AUDIT)
async def audit_store(store: StoreSpec, rows: int, seed: int) -> tuple[AuditReport, RowSample]:
    """Re-read everything of a job, and choose rows to be re-scored."""
    report, sample = await auditing.audited_at(store, await load_credentials(store), rows, seed)
    get_run_logger().info("%d rows, %d checks: %s", report.rows["total"], len(report.checks), report.reason)
    return report, sample


@task(name="rescore_rows", task_run_name="rescore_rows {ask.rows}", **AUDIT)
async def rescore_rows(store: StoreSpec, report: AuditReport, sample: RowSample, ask: Rescore) -> AuditReport:
    """Send the chosen rows to a server, and add what it thinks of their ids to the report."""
    credentials = await load_credentials(store)
    report = await auditing.rescored_at(store, credentials, report, sample, ask)
    get_run_logger().info(report.notices[-1])
    return report


@task(name="tend_servers", task_run_name="tend_servers", **STEP)
async def tend_servers(
    servers: ServersSpec, model: ModelSpec, store: StoreSpec | None, users: Users
) -> tuple[Tended, ...]:
    """Check every server as a job would, and restart those that may be and that nobody uses."""
    log, name, locks = get_run_logger(), f"maintenance {runtime.flow_run.id}", None
    if store is not None:
        locks = server_locks(store, name, servers.ready_timeout_seconds, await load_credentials(store))
    tended = await maintaining.tend_servers(servers, model, locks, users, log.info)
    for each in tended:
        log.info("%s: %s", each.state, each.evidence)
        if each.state == maintaining.RESTARTED:
            _tell_restart(each.url, each.told)
    return tended


@task(name="write_export", task_run_name="write_export", **STEP)
async def write_export(
    stores: Sequence[ExportedStore], options: ExportOptions, out: ExportPlace
) -> dict[str, Any]:
    """Write the rows of the stores as a trainer's files; return the report, and show it in the UI."""
    log, stop = get_run_logger(), threading.Event()
    credentials = [await load_credentials(place) for place in (*stores, out)]
    try:
        report = await asyncio.to_thread(
            exporting.export_stores, stores, options, out, credentials, log.info, stop.is_set
        )
    finally:
        stop.set()
    log.info("%s: %s rows, %s ids in %s", report["state"], report["rows"], report["tokens"], report["out"])
    try:
        told = f"What a longest length costs: {report['out']}"
        await acreate_table_artifact(table=report["lengths"], key="export-lengths", description=told)
    except UNSEEN as error:
        log.warning("could not show the table: %s", error)
    return report
