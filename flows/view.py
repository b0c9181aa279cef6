"""What the Prefect UI shows of a run: progress, batches, servers, and the tables at its end.

All of it is a view: an outage of the Prefect server loses some of it, and never fails a run. Live artifacts
are made once and then changed in place, so that ten days leave three artifacts and no history of them.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote
from uuid import UUID

import orjson
from prefect import get_client, get_run_logger, runtime
from prefect.artifacts import acreate_markdown_artifact, acreate_progress_artifact, acreate_table_artifact
from prefect.client.base import ServerType
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    ArtifactFilterKey,
    FlowFilter,
    FlowFilterName,
)
from prefect.utilities.urls import url_for

from tasks.report.summary import Summary, verdict_rows
from tasks.run.run import Run, current_run
from tasks.run.tables import REASON_CHARACTERS, ServerBook
from tasks.steps import UNSEEN
from tasks.store.commands import retry_command

PROGRESS_SECONDS = 5.0
"""Between two updates of the progress artifact: one small PATCH, 172,800 of them in ten days."""

TABLE_SECONDS = 30.0
"""Between two updates of the tables: up to 30 kB each, 28,800 of each in ten days."""

SLOWEST_SECONDS = 300.0
"""Flow runs that share a job share its updates too, but none is left unseen for longer than that."""

FAILED_SHOWN = 500
"""Most failed batches in the closing table and in its link; the command names all of them."""

PAGE = 200

Tables = Callable[[], Mapping[str, list[dict[str, Any]]]]
"""Returns what the live tables show now, by title."""


def live_tables(run: Run) -> Tables:
    """Return what shows the batches and servers of a run."""
    servers = ServerBook()

    def now() -> dict[str, list[dict[str, Any]]]:
        fleet = run.fleet.servers if run.fleet is not None else ()
        return {"Batches": run.book.table(), "Servers": servers.table(fleet)}

    return now


@asynccontextmanager
async def shown_progress(tables: Tables | None = None, sharers: int = 1) -> AsyncIterator[None]:
    """Keep the live artifacts of the current run up to date while the body runs, and at its end.

    Args:
        tables: what to show beside the progress; None: the run's batches and servers.
        sharers: flow runs that do this at once for one job: each does it so much more rarely.
    """
    tables = tables or live_tables(current_run())
    artifacts: dict[str, UUID] = {}
    await _show(artifacts, tables())
    shower = asyncio.create_task(_keep_showing(artifacts, tables, sharers), name="rawseq-view")
    try:
        yield
    finally:
        shower.cancel()
        await asyncio.gather(shower, return_exceptions=True)
        await _show(artifacts, tables())


async def _keep_showing(artifacts: dict[str, UUID], tables: Tables, sharers: int) -> None:
    shown = time.monotonic()
    while True:
        await asyncio.sleep(min(SLOWEST_SECONDS, sharers * PROGRESS_SECONDS))
        due = time.monotonic() - shown >= min(SLOWEST_SECONDS, sharers * TABLE_SECONDS)
        shown = time.monotonic() if due else shown
        await _show(artifacts, tables() if due else {})


async def _show(artifacts: dict[str, UUID], tables: Mapping[str, list[dict[str, Any]]]) -> None:
    """Make or change the progress artifact and the given tables."""
    progress = current_run().progress
    share, words = 100.0 * progress.share, progress.describe()
    try:
        async with get_client() as client:
            if "progress" not in artifacts:
                artifacts["progress"] = await acreate_progress_artifact(share, description=words)
            else:
                update = ArtifactUpdate(data=share, description=words)
                await client.update_artifact(artifacts["progress"], update)
            for title, table in tables.items():
                if title not in artifacts:
                    artifacts[title] = await acreate_table_artifact(table=table, description=title)
                else:
                    data = orjson.dumps(table).decode()
                    await client.update_artifact(artifacts[title], ArtifactUpdate(data=data))
    except UNSEEN as error:
        get_run_logger().warning("could not show the progress: %s", error)


async def show_summary(summary: Summary) -> None:
    """Show the closing tables, rows by verdict and failed batches with what to do; link the report."""
    table = verdict_rows(summary.rows["by_verdict"])
    key = _key("verdicts", summary.job_id)
    try:
        await acreate_table_artifact(table=table, key=key, description=f"Rows by verdict of {summary.store}")
        if published := current_run().published:
            await acreate_markdown_artifact(published.markdown(), key=_key("report", summary.job_id))
    except UNSEEN as error:
        get_run_logger().warning("could not show the verdicts: %s", error)
    await show_failures(summary.failures)


async def show_failures(failures: Sequence[tuple[int, str]]) -> None:
    """Put the failed batches into the UI, with the command and the link that make them again."""
    run = current_run()
    if not failures:
        return
    numbers = [batch for batch, _ in failures]
    log = url_for("flow-run", runtime.flow_run.id)
    table = [
        {
            "batch": batch,
            "state": "failed",
            "reason": reason[:REASON_CHARACTERS],
            "log": run.logs.get(batch, log),
        }
        for batch, reason in failures[:FAILED_SHOWN]
    ]
    words = [f"**{len(failures)} batches failed.** The others are committed. Make these again:", ""]
    words.append(f"    {retry_command(run.store.typed, numbers)}")
    try:
        async with get_client() as client:
            link = await _retry_link(client, run, numbers)
        if link:
            words += ["", f"or in the UI: [retry-batches with these batches]({link})"]
        key = _key("failed", run.spec.job_id)
        await acreate_table_artifact(table=table, key=key, description="\n".join(words))
    except UNSEEN as error:
        get_run_logger().warning("could not show the failed batches: %s", error)


def _key(kind: str, job_id: str) -> str:
    return f"{kind}-{job_id}".replace(".", "-").replace("_", "-")


async def _retry_link(client: PrefectClient, run: Run, numbers: Sequence[int]) -> str | None:
    """Return the address of the run form of retry-batches, filled in; None when it is not deployed."""
    wanted = FlowFilter(name=FlowFilterName(any_=["retry-batches"]))
    found = await client.read_deployments(flow_filter=wanted, limit=1)
    page = url_for("deployment", found[0].id) if found else None
    if page is None:
        return None
    if client.server_type != ServerType.CLOUD:  # url_for leads to the old UI, whose form is another one
        page = page.replace("/deployments/", "/v2/deployments/")
    batches = list(numbers) if len(numbers) <= FAILED_SHOWN else []  # none named: all without a receipt
    parameters = {"job": run.spec.model_dump(mode="json", exclude_defaults=True), "batches": batches}
    return f"{page}/run?parameters={quote(orjson.dumps(parameters).decode())}"


async def failures_told(client: PrefectClient, runs: Collection[UUID]) -> dict[int, dict[str, Any]]:
    """Return the rows of the failed batches in the tables that these flow runs have left, by number."""
    told: dict[int, dict[str, Any]] = {}
    ids, key = list(runs), _key("failed", current_run().spec.job_id)
    try:
        for first in range(0, len(ids), PAGE):
            wanted = ArtifactFilter(
                key=ArtifactFilterKey(any_=[key]),
                flow_run_id=ArtifactFilterFlowRunId(any_=ids[first : first + PAGE]),
            )
            for artifact in await client.read_artifacts(artifact_filter=wanted, limit=PAGE):
                told |= {int(row["batch"]): row for row in orjson.loads(str(artifact.data))}
    except UNSEEN as error:
        get_run_logger().warning("could not read why batches failed: %s", error)
    return told
