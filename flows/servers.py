"""Servers looked after on a schedule: checked as a job would, restarted where allowed, reported."""

from collections.abc import Sequence
from typing import Any

from prefect import flow, get_client, get_run_logger
from prefect.artifacts import acreate_markdown_artifact
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.states import Completed, Failed

from flows.chain import clean_stop
from tasks.job.spec import ModelSpec, ServersSpec, StoreSpec
from tasks.run.maintain import Tended, problem_of, report_of, summary_of
from tasks.steps import UNSEEN, tend_servers

PAGE = 200
"""Most flow runs that Prefect's API gives at once."""


@flow(name="maintain-servers", flow_run_name="maintain-servers", persist_result=False)
async def maintain_servers(
    servers: ServersSpec, model: ModelSpec, store: StoreSpec | None = None
) -> State[Any]:
    """Make every server fit for token data, as far as allowed; leave alone those that somebody uses.

    Args:
        servers: Which servers, and what may be done to them.
        model: Whose tokens they are to make.
        store: Where jobs over these servers keep their data: restarts then take the jobs' lock there.
    """
    async with clean_stop():
        tended = await tend_servers(servers, model, store, jobs_under_way)
        await _show(tended)
    if problem := problem_of(tended):
        return Failed(message=problem)
    return Completed(message=summary_of(tended))


async def jobs_under_way() -> list[tuple[str, list[str]]]:
    """Return the flow runs under way whose job names servers, with the URLs of those."""
    states = FlowRunFilterStateType(any_=[StateType.RUNNING, StateType.CANCELLING])
    wanted = FlowRunFilter(state=FlowRunFilterState(type=states))
    runs: list[FlowRun] = []
    async with get_client() as client:
        while page := await client.read_flow_runs(flow_run_filter=wanted, limit=PAGE, offset=len(runs)):
            runs += page
    jobs = [(run.name, run.parameters.get("job")) for run in runs]
    return [(f"flow run {name}", job["servers"]["urls"]) for name, job in jobs if job and "servers" in job]


async def _show(tended: Sequence[Tended]) -> None:
    """Put the report into the UI; an outage there must not fail the run."""
    try:
        await acreate_markdown_artifact(
            report_of(tended), key="servers", description="Servers, with evidence"
        )
    except UNSEEN as error:
        get_run_logger().warning("could not show the report: %s", error)
