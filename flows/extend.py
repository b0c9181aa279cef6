"""Rows that were cut by length, taken up where they stopped, as new receipt generations."""

from typing import Annotated, Any

from prefect import flow, runtime
from prefect.client.schemas.objects import State
from pydantic import Field

from flows.chain import clean_stop, close_run
from flows.retry import make_again
from tasks.job.spec import JobSpec
from tasks.run.retry import Again
from tasks.run.run import open_run
from tasks.steps import load_credentials, plan_continuations


@flow(name="continue-rows", flow_run_name="{job.name} continued", persist_result=False)
async def continue_rows(
    job: JobSpec, max_new_tokens: int, workers: Annotated[int, Field(ge=1, le=1000)] = 1
) -> State[Any]:
    """Send the ids of every cut row back with more room; the other rows are copied verbatim.

    Args:
        job: The job whose store holds the rows.
        max_new_tokens: Ids that each cut row may grow by.
        workers: Flow runs that make batches at once, as in generate-dataset.
    """
    credentials = await load_credentials(job.store)
    async with clean_stop(), open_run(job, str(runtime.flow_run.id), credentials):
        retries = await plan_continuations(max_new_tokens)
        again = Again(generations={retry.index: retry.generation for retry in retries}, more=max_new_tokens)
        return await close_run(await make_again(job, retries, workers, again))
