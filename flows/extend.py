"""Rows that were cut by length, taken up where they stopped, as new receipt generations."""

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
    plan_continuations,
    render_again,
)


@flow(name="continue-rows", flow_run_name="{job.name} continued", persist_result=False)
async def continue_rows(job: JobSpec, max_new_tokens: int) -> State[Any]:
    """Send the ids of every cut row back with more room; the other rows are copied verbatim.

    Args:
        job: The job whose store holds the rows.
        max_new_tokens: Ids that each cut row may grow by.
    """
    credentials = await load_credentials(job.store)
    async with clean_stop(), open_run(job, str(runtime.flow_run.id), credentials):
        retries = await plan_continuations(max_new_tokens)
        failures: list[tuple[int, str]] = []
        if retries:
            await ensure_servers()
            async with shown_progress():
                failures = await make_batches(retries, render_again)
        return await close_run(failures)
