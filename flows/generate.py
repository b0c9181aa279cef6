"""The main job: prompts in, checked raw token ids out, batch by batch."""

from typing import Any

from prefect import flow, runtime
from prefect.client.schemas.objects import State

from flows.chain import clean_stop, end_state, make_batches
from tasks.run import open_run
from tasks.spec import JobSpec
from tasks.steps import (
    ensure_servers,
    load_credentials,
    plan_batches,
    publish_dataset,
    render_prompts,
    shown_progress,
)


@flow(name="generate-dataset", flow_run_name="{job.name}", persist_result=False)
async def generate_dataset(job: JobSpec) -> State[Any]:
    """Make every row of the job that its ledger does not list yet; running it again resumes.

    Args:
        job: What to generate, with what, to where.
    """
    credentials = await load_credentials(job.store)
    async with clean_stop(), open_run(job, str(runtime.flow_run.id), credentials):
        pending = await plan_batches()
        failures: list[tuple[int, str]] = []
        if pending:
            await ensure_servers()
            async with shown_progress():
                failures = await make_batches(pending, render_prompts)
        summary = await publish_dataset(failures)
    return end_state(summary)
