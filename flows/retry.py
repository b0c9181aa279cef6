"""Failed, named or rejected work again, as new receipt generations."""

from collections.abc import Sequence
from typing import Annotated, Any

from prefect import flow, runtime
from prefect.client.schemas.objects import State
from pydantic import Field

from flows.chain import clean_stop, close_run, make_batches
from flows.spread import spread_batches
from flows.view import shown_progress
from tasks.job.spec import JobSpec
from tasks.run.ranges import must_spread
from tasks.run.retry import Again, Retry
from tasks.run.run import open_run
from tasks.steps import ensure_servers, load_credentials, plan_retries, render_again


@flow(name="retry-batches", flow_run_name="{job.name} again", persist_result=False)
async def retry_batches(
    job: JobSpec,
    batches: list[int] | None = None,
    rejected: list[str] | None = None,
    workers: Annotated[int, Field(ge=1, le=1000)] = 1,
    server: str | None = None,
) -> State[Any]:
    """Make batches again: those without a receipt, named ones, those with rejected rows or a server's rows.

    Args:
        job: The job whose store holds the plan.
        batches: Numbers of batches; empty for all.
        rejected: Verdict codes of rejected rows to make again; accepted rows are copied verbatim.
        workers: Flow runs that make batches at once, as in generate-dataset.
        server: URL of a server; all rows that it made are made again, accepted ones too.
    """
    credentials = await load_credentials(job.store)
    async with clean_stop(), open_run(job, str(runtime.flow_run.id), credentials):
        retries = await plan_retries(batches or [], rejected or [], server or "")
        again = Again(
            generations={retry.index: retry.generation for retry in retries},
            rejected=rejected or [],
            look=bool(batches),
            server=server or "",
        )
        return await close_run(await make_again(job, retries, workers, again))


async def make_again(
    job: JobSpec, retries: Sequence[Retry], workers: int, again: Again
) -> list[tuple[int, str]]:
    """Make batches again, here or in flow runs over ranges; return (batch, error) of those that failed.

    Args:
        job: the job.
        retries: what there is to make again.
        workers: flow runs that make batches at once.
        again: the same as a parameter of flow runs.
    """
    if must_spread(len(retries), workers):
        return await spread_batches(job, retries, workers, None, again)
    if not retries:
        return []
    await ensure_servers()
    async with shown_progress():
        return await make_batches(retries, render_again)
