"""A part of a big job: the batches of one range, beside other flow runs on other ranges."""

from typing import Annotated, Any

from prefect import flow, runtime
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed
from pydantic import Field

from flows.chain import clean_stop, make_batches, wait_for_prefect
from flows.view import show_failures, shown_progress
from tasks.run import open_run
from tasks.spec import JobSpec
from tasks.spreading import INCOMPLETE
from tasks.steps import ensure_servers, load_credentials, plan_range, render_prompts


@flow(name="generate-range", flow_run_name="{job.name} batches [{start},{stop})", persist_result=False)
async def generate_range(
    job: JobSpec,
    start: Annotated[int, Field(ge=0)],
    stop: Annotated[int, Field(ge=1)],
    sharers: Annotated[int, Field(ge=1)] = 1,
) -> State[Any]:
    """Make the planned batches [start, stop) that have no receipt; generate-dataset plans and publishes.

    Args:
        job: The job whose store holds the plan.
        start: Number of the first batch.
        stop: Number behind the last batch.
        sharers: Flow runs that use the servers at once: each takes its share of their windows.
    """
    credentials = await load_credentials(job.store)
    async with clean_stop(), open_run(job, str(runtime.flow_run.id), credentials):
        pending = await plan_range(start, stop)
        failures: list[tuple[int, str]] = []
        if pending:
            await ensure_servers(sharers)
            async with shown_progress(sharers=sharers):
                failures = await make_batches(pending, render_prompts)
        await wait_for_prefect()
        await show_failures(failures)
    if failures:
        named = ", ".join(str(batch) for batch, _ in failures[:10])
        return Failed(name=INCOMPLETE, message=f"{len(failures)} of {len(pending)} batches failed: {named}")
    return Completed(message=f"{len(pending)} batches committed")
