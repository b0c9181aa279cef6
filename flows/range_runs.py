"""Flow runs over ranges of a job's batches: where they run, how they are started, found again and stopped."""

import asyncio
from multiprocessing.process import BaseProcess
from typing import Any
from uuid import UUID

from prefect import Task, get_run_logger
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import StateType
from prefect.context import FlowRunContext
from prefect.deployments import arun_deployment
from prefect.flow_engine import run_flow_in_subprocess
from prefect.states import Cancelling, Pending

from flows.ranges import generate_range
from tasks.job.spec import JobSpec
from tasks.run.ranges import LINKED_RANGES, BatchRange, RangeRun, Spread
from tasks.run.retry import Again
from tasks.steps import UNSEEN

END_SECONDS = 30.0
"""How long processes of this machine may take to close their journals when the run is stopped."""

PAGE = 200
"""Most flow runs that one API call returns."""

NO_PARENT: dict[str, Any] = {"flow_run_context": {}}
"""Context of a process of this machine: it is linked to this run by its parent task run alone."""

UNDER_WAY = (StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING)


async def place_of_ranges(client: PrefectClient, deployment: str | None) -> UUID | None:
    """Return the deployment that makes ranges; None: this machine does."""
    place: UUID | None = None
    if deployment is not None:
        place = (await client.read_deployment_by_name(deployment)).id
    else:
        flow = FlowFilter(name=FlowFilterName(any_=[generate_range.name]))
        found = await client.read_deployments(flow_filter=flow)
        ready = sorted((each for each in found if each.status == "READY"), key=lambda each: each.name)
        place = ready[0].id if ready else None
    where = "in processes of this machine" if place is None else "by the deployment's work pool"
    get_run_logger().info("ranges of batches are made %s", where)
    return place


async def left_at_work(client: PrefectClient, job: JobSpec) -> dict[UUID, RangeRun]:
    """Return the flow runs over ranges of this job that an earlier run has left at work."""
    wanted = FlowRunFilter(
        tags=FlowRunFilterTags(all_=[_tag(job)]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(UNDER_WAY))),
    )
    found: dict[UUID, RangeRun] = {}
    while True:
        page = await client.read_flow_runs(flow_run_filter=wanted, limit=PAGE, offset=len(found))
        for each in page:
            start, stop = each.parameters["start"], each.parameters["stop"]
            found[each.id] = RangeRun(each.id, BatchRange(start, stop, stop - start))
        if len(page) < PAGE:
            return found


def _tag(job: JobSpec) -> str:
    return f"ranges-of-{job.job_id}"


async def start_range(
    client: PrefectClient,
    job: JobSpec,
    place: UUID | None,
    again: Again | None,
    spread: Spread,
    part: BatchRange,
) -> None:
    """Start a flow run over a range; it waits again when that fails."""
    name, linked = f"{job.name} {part.name}", spread.started < LINKED_RANGES
    tags = [_tag(job)] if again is None else []
    parameters: dict[str, Any] = {"start": part.start, "stop": part.stop, "sharers": spread.workers}
    parameters["job"] = job.model_dump(mode="json")
    if again is not None:
        parameters["again"] = again.within(part.start, part.stop).model_dump(mode="json")
    get_run_logger().info("%s: a flow run is started", part.name)
    try:
        if place is not None:
            options: dict[str, Any] = {"timeout": 0, "flow_run_name": name, "tags": tags}
            made = await arun_deployment(place, client, parameters, as_subflow=linked, **options)
            spread.started += 1
            spread.afoot[made.id] = RangeRun(made.id, part)
            return
        made = await client.create_flow_run(
            generate_range,
            name=name,
            parameters=parameters,
            tags=tags,
            parent_task_run_id=await _link(name) if linked else None,
            state=Pending(),
        )
    except BaseException:
        spread.waiting.appendleft(part)
        raise
    here: dict[str, str | None] = {"PREFECT_API_URL": str(client.api_url)}
    process = run_flow_in_subprocess(generate_range, made, parameters, context=NO_PARENT, env=here)
    spread.started += 1
    spread.afoot[made.id] = RangeRun(made.id, part, process)


async def _link(name: str) -> UUID:
    """Return a task run of this run that stands for another flow run."""
    made = await Task(lambda: None, name=name).create_run(
        flow_run_context=FlowRunContext.get(), parameters={}
    )
    return made.id


async def stop_ranges(client: PrefectClient, spread: Spread) -> None:
    """Let the flow runs that are still at work close their journals and end."""
    processes = [each.process for each in spread.afoot.values() if each.process is not None]
    for process in processes:
        process.terminate()
    try:
        for each in spread.afoot.values():
            if each.process is None:
                await client.set_flow_run_state(each.run_id, Cancelling())
    except UNSEEN as error:
        get_run_logger().warning("could not cancel flow runs; the next run finds them: %s", error)
    for process in processes:
        await end_process(process)


async def end_process(process: BaseProcess) -> None:
    """Wait until a process of this machine that was told to end is gone; one that has stalled is killed."""
    await asyncio.to_thread(process.join, END_SECONDS)
    if process.is_alive():
        text = "process %d did not end within %.0f s: it is killed, what is in its journals stays"
        get_run_logger().warning(text, process.pid, END_SECONDS)
        process.kill()
        await asyncio.to_thread(process.join, END_SECONDS)
