"""The main job: prompts in, checked raw token ids out, batch by batch."""

from typing import Annotated, Any

from prefect import flow, runtime
from prefect.client.schemas.objects import State
from pydantic import Field

from flows.chain import clean_stop, close_run, make_batches
from flows.spread import spread_batches
from flows.view import shown_progress
from tasks.job.spec import JobSpec
from tasks.run.ranges import must_spread
from tasks.run.run import open_run
from tasks.steps import (
    ensure_servers,
    load_credentials,
    plan_batches,
    render_prompts,
)


@flow(name="generate-dataset", flow_run_name="{job.name}", persist_result=False)
async def generate_dataset(
    job: JobSpec,
    workers: Annotated[int, Field(ge=1, le=1000)] = 1,
    range_deployment: str | None = None,
) -> State[Any]:
    """Make every row of the job that its ledger does not list yet; running it again resumes.

    Args:
        job: What to generate, with what, to where.
        workers: Flow runs that make batches at once. More than one, or more than 100 batches: generate-range
            runs over ranges of batches, which share the servers.
        range_deployment: Deployment of generate-range whose work pool makes the ranges, as flow/deployment;
            empty: the one that a worker serves, else processes of this machine.
    """
    credentials = await load_credentials(job.store)
    async with clean_stop(), open_run(job, str(runtime.flow_run.id), credentials):
        pending = await plan_batches()
        failures: list[tuple[int, str]] = []
        if must_spread(len(pending), workers):
            failures = await spread_batches(job, pending, workers, range_deployment)
        elif pending:
            await ensure_servers()
            async with shown_progress():
                failures = await make_batches(pending, render_prompts)
        return await close_run(failures)
