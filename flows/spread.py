"""A job handed out in ranges of batches: to flow runs on a work pool, or in processes of this machine."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from prefect import Task, get_client, get_run_logger
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.context import FlowRunContext
from prefect.deployments import arun_deployment
from prefect.flow_engine import run_flow_in_subprocess
from prefect.states import Cancelling, Crashed, Pending

from flows.ranges import generate_range
from flows.view import reasons_of, shown_progress
from tasks.errors import RangeError
from tasks.run import current_run
from tasks.spec import JobSpec
from tasks.spreading import INCOMPLETE, BatchRange, RangeRun, Spread, count_committed, cut_ranges, listen
from tasks.steps import UNSEEN
from tasks.storage.ledger import Batch

LOOK_SECONDS = 5.0
"""How often the ledger and the flow runs are looked at: two API calls and one listing."""

LOOK_SHARE = 0.05
"""A listing that takes long (of a million receipts) is made less often: at most this share of the time."""

END_SECONDS = 30.0
"""How long processes of this machine may take to close their journals when the run is stopped."""

PAGE = 200
"""Most flow runs that one API call returns."""

NO_PARENT: dict[str, Any] = {"flow_run_context": {}}
"""Context of a process of this machine: it is linked to this run by its parent task run alone."""

UNDER_WAY = (StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING)


async def spread_batches(
    job: JobSpec, pending: Sequence[Batch], workers: int, deployment: str | None
) -> list[tuple[int, str]]:
    """Have the batches made by flow runs over ranges; return (batch, reason) of those that were not.

    Flow runs of this job that an earlier run had started and that still live go on; the ledger decides what
    is done. A flow run that dies is replaced; whoever comes after it takes its half-done batches up.

    Args:
        job: the job.
        pending: planned batches without a receipt.
        workers: ranges in their first half at once.
        deployment: name of a deployment of generate-range; None: one that a worker serves, else processes.

    Raises:
        RangeError: a flow run ended in a way that only a person can mend; what is committed stays.
    """
    run, log = current_run(), get_run_logger()
    async with get_client() as client:
        place = await _place(client, deployment)
        where = "in processes of this machine" if place is None else "by the deployment's work pool"
        spread = Spread(deque(), workers, seen=set(await run.in_thread(run.ledger.committed)))
        spread.afoot |= await _adopted(client, job)
        taken = {number for each in spread.afoot.values() for number in _numbers(each.range)}
        spread.waiting.extend(cut_ranges([b for b in pending if b.index not in taken], workers))
        log.info("%d ranges, %d at work, others made %s", len(spread.waiting), len(spread.afoot), where)
        runs: set[UUID] = set(spread.afoot)
        try:
            async with shown_progress(lambda: {"Ranges": spread.table()}):
                while spread.goes_on:
                    await _look(client, job, place, spread)
                    runs |= set(spread.afoot)
        finally:
            await asyncio.shield(_stop(client, spread))
        if spread.stopped:
            raise RangeError(spread.stopped)
        left = [batch.index for batch in pending if batch.index not in spread.seen]
        reasons = await reasons_of(client, runs) if left else {}
    return [(number, reasons.get(number, "its flow run ended without it")) for number in left]


def _numbers(batches: BatchRange) -> range:
    return range(batches.start, batches.stop)


async def _place(client: PrefectClient, deployment: str | None) -> UUID | None:
    """Return the deployment that makes ranges; None: this machine does."""
    if deployment is not None:
        return (await client.read_deployment_by_name(deployment)).id
    found = await client.read_deployments(
        flow_filter=FlowFilter(name=FlowFilterName(any_=[generate_range.name]))
    )
    ready = sorted((each for each in found if each.status == "READY"), key=lambda each: each.name)
    return ready[0].id if ready else None


def _tag(job: JobSpec) -> str:
    return f"ranges-of-{job.job_id}"


async def _adopted(client: PrefectClient, job: JobSpec) -> dict[UUID, RangeRun]:
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


async def _look(client: PrefectClient, job: JobSpec, place: UUID | None, spread: Spread) -> None:
    """Look at ledger and flow runs once, start what is due, and wait for the next look."""
    run, began = current_run(), time.monotonic()
    await run.in_thread(count_committed, run, spread.seen)
    took = time.monotonic() - began
    try:
        under_way = list(spread.afoot)
        for first in range(0, len(under_way), PAGE):
            some = under_way[first : first + PAGE]
            query = FlowRunFilter(id=FlowRunFilterId(any_=some))
            page = {each.id: each for each in await client.read_flow_runs(flow_run_filter=query, limit=PAGE)}
            for run_id in some:
                await _judge(client, spread, spread.afoot[run_id], page.get(run_id))
        while (part := spread.due()) is not None:
            await _start(client, job, place, spread, part)
    except UNSEEN as error:
        get_run_logger().warning("the Prefect server does not answer: flow runs go on unseen: %s", error)
    if spread.goes_on:
        await asyncio.sleep(max(LOOK_SECONDS, took / LOOK_SHARE))


async def _judge(client: PrefectClient, spread: Spread, each: RangeRun, seen: FlowRun | None) -> None:
    """Note what became of one flow run."""
    run, log = current_run(), get_run_logger()
    if seen is None:
        return spread.died(each, "its flow run was deleted")
    state = seen.state
    told = f"flow run {seen.name!r} ended as {state and state.name}: {state and state.message}"
    if state is None or state.type in UNDER_WAY or state.type == StateType.CANCELLING:
        why = await _death(each, seen)
        if why:
            log.warning("flow run %r %s: another one takes its range", seen.name, why)
            spread.died(each, why)
            await client.set_flow_run_state(each.run_id, Crashed(message=why), force=True)
    elif state.type == StateType.COMPLETED or state.name == INCOMPLETE:
        await run.in_thread(count_committed, run, spread.seen)
        spread.ended(each)
    elif state.type == StateType.CRASHED:
        log.warning("%s: another one takes its range", told)
        spread.died(each, told)
    else:  # a person cancelled it, or only a person can mend what it met
        spread.ended(each)
        spread.stopped = spread.stopped or f"{each.range.name}: {told}"
    return None


async def _death(each: RangeRun, seen: FlowRun) -> str:
    """Return how a flow run that is said to be under way must have died; "" when it may live."""
    run, now = current_run(), time.monotonic()
    if each.process is not None and not each.process.is_alive():
        told, each.gone = each.gone, True  # it may have told the server since it was asked
        return f"ended with its process, status {each.process.exitcode}" if told else ""
    if seen.deployment_id is not None and seen.state_type == StateType.SCHEDULED:
        return ""  # it waits for a worker
    await run.in_thread(listen, run, each, now)
    lease = run.spec.batch.lease_seconds
    return f"was silent for {lease:.0f} s" if each.silent(now, lease) else ""


async def _start(
    client: PrefectClient, job: JobSpec, place: UUID | None, spread: Spread, part: BatchRange
) -> None:
    """Start a flow run over a range; it waits again when that fails."""
    name, tags = f"{job.name} {part.name}", [_tag(job)]
    parameters: dict[str, Any] = {"start": part.start, "stop": part.stop, "sharers": spread.workers}
    parameters["job"] = job.model_dump(mode="json")
    get_run_logger().info("%s: a flow run is started", part.name)
    try:
        if place is not None:
            made = await arun_deployment(place, client, parameters, timeout=0, flow_run_name=name, tags=tags)
            spread.afoot[made.id] = RangeRun(made.id, part)
            return
        parent = await Task(lambda: None, name=name).create_run(
            flow_run_context=FlowRunContext.get(), parameters={}
        )
        made = await client.create_flow_run(
            generate_range,
            name=name,
            parameters=parameters,
            tags=tags,
            parent_task_run_id=parent.id,
            state=Pending(),
        )
    except BaseException:
        spread.waiting.appendleft(part)
        raise
    here: dict[str, str | None] = {"PREFECT_API_URL": str(client.api_url)}
    process = run_flow_in_subprocess(generate_range, made, parameters, context=NO_PARENT, env=here)
    spread.afoot[made.id] = RangeRun(made.id, part, process)


async def _stop(client: PrefectClient, spread: Spread) -> None:
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
        await asyncio.to_thread(process.join, END_SECONDS)
