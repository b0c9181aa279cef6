"""A part of a big job: the batches of one range, beside other flow runs on other ranges."""

from collections.abc import Sequence
from typing import Annotated, Any

from prefect import flow, runtime
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed
from pydantic import Field

from flows.chain import clean_stop, make_batches, wait_for_prefect
from flows.view import show_failures, shown_progress
from tasks.errors import OperatorError
from tasks.job.spec import JobSpec
from tasks.run.ranges import INCOMPLETE
from tasks.run.retry import Again
from tasks.run.run import open_run
from tasks.steps import ensure_servers, load_credentials, plan_range, render_again, render_prompts


@flow(name="generate-range", flow_run_name="{job.name} batches [{start},{stop})", persist_result=False)
async def generate_range(
    job: JobSpec,
    start: Annotated[int, Field(ge=0)],
    stop: Annotated[int, Field(ge=1)],
    sharers: Annotated[int, Field(ge=1)] = 1,
    again: Again | None = None,
) -> State[Any]:
    """Make the planned batches [start, stop) that have no receipt; generate-dataset plans and publishes.

    Args:
        job: The job whose store holds the plan.
        start: Number of the first batch.
        stop: Number behind the last batch.
        sharers: Flow runs that use the servers at once: each takes its share of their windows.
        again: Batches of the range to make again, as retry-batches or continue-rows has planned them.
    """
    try:
        credentials = await load_credentials(job.store)
        async with clean_stop(), open_run(job, str(runtime.flow_run.id), credentials):
            pending, failures = await _made(start, stop, sharers, again)
            await wait_for_prefect()
            await show_failures(failures)
    except OperatorError as error:  # its name tells the flow run that handed the range out who must act
        return Failed(name=type(error).__name__, message=str(error))
    if failures:
        named = ", ".join(str(batch) for batch, _ in failures[:10])
        return Failed(name=INCOMPLETE, message=f"{len(failures)} of {pending} batches failed: {named}")
    return Completed(message=f"{pending} batches committed")


async def _made(
    start: int, stop: int, sharers: int, again: Again | None
) -> tuple[int, list[tuple[int, str]]]:
    """Make what is left of the range; return how many batches that was, and (batch, error) of the failed."""
    pending: Sequence[Any] = await plan_range(start, stop, again)
    if not pending:
        return 0, []
    await ensure_servers(sharers)
    async with shown_progress(sharers=sharers):
        made = await make_batches(pending, render_prompts if again is None else render_again)
    return len(pending), made
