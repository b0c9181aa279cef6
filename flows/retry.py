"""Failed, named or rejected work again, as new receipt generations."""

from typing import Any

from prefect import flow, runtime
from prefect.client.schemas.objects import State

from flows.chain import clean_stop, close_run, make_batches
from flows.view import shown_progress
from tasks.run import open_run
from tasks.spec import JobSpec
from tasks.steps import (
    ensure_servers,
    load_credentials,
    plan_retries,
    render_again,
)


@flow(name="retry-batches", flow_run_name="{job.name} again", persist_result=False)
async def retry_batches(
    job: JobSpec, batches: list[int] | None = None, rejected: list[str] | None = None
) -> State[Any]:
    """Make batches again: those without a receipt, named ones, or those with rejected rows of some code.

    Args:
        job: The job whose store holds the plan.
        batches: Numbers of batches; empty for all.
        rejected: Verdict codes of rejected rows to make again; accepted rows are copied verbatim.
    """
    credentials = await load_credentials(job.store)
    async with clean_stop(), open_run(job, str(runtime.flow_run.id), credentials):
        retries = await plan_retries(batches or [], rejected or [])
        failures: list[tuple[int, str]] = []
        if retries:
            await ensure_servers()
            async with shown_progress():
                failures = await make_batches(retries, render_again)
        return await close_run(failures)
