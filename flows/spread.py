"""A job handed out in ranges of batches: to flow runs on a work pool, or in processes of this machine."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from multiprocessing.process import BaseProcess
from uuid import UUID

from prefect import get_client, get_run_logger
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.states import Crashed

from flows.range_runs import (
    END_SECONDS,
    PAGE,
    UNDER_WAY,
    left_at_work,
    place_of_ranges,
    start_range,
    stop_ranges,
)
from flows.view import failures_told, shown_progress
from tasks.job.spec import JobSpec
from tasks.run.batch import Numbered
from tasks.run.ranges import (
    INCOMPLETE,
    PENDING_SECONDS,
    SPAWN_SECONDS,
    BatchRange,
    RangeRun,
    Spread,
    count_committed,
    cut_ranges,
    error_of,
    listen,
)
from tasks.run.retry import Again, Retry
from tasks.run.run import current_run
from tasks.steps import UNSEEN

LOOK_SECONDS = 5.0
"""How often the ledger and the flow runs are looked at: two API calls and one listing."""

LOOK_SHARE = 0.05
"""A listing that takes long (of a million receipts) is made less often: at most this share of the time."""


Start = Callable[[Spread, BatchRange], Awaitable[None]]
"""Starts a flow run over a range."""


async def spread_batches(
    job: JobSpec,
    units: Sequence[Numbered],
    workers: int,
    deployment: str | None,
    again: Again | None = None,
) -> list[tuple[int, str]]:
    """Have the batches made by flow runs over ranges; return (batch, reason) of those that were not.

    Flow runs of this job that an earlier run had started and that still live go on; the ledger decides what
    is done. A flow run that dies is replaced; whoever comes after it takes its half-done batches up.

    Args:
        job: the job.
        units: planned batches without a receipt, or batches again.
        workers: ranges in their first half at once.
        deployment: name of a deployment of generate-range; None: one that a worker serves, else processes.
        again: how the batches are made again; None: they are made for the first time.

    Raises:
        OperatorError: a flow run ended in a way that only a person can mend; what is committed stays.
    """
    run = current_run()
    assert run.plan is not None
    wanted = {unit.index: unit.generation for unit in units}
    retries = {unit.index: unit for unit in units if isinstance(unit, Retry)} if again else {}
    async with get_client() as client:
        spread = Spread(deque(), workers, seen=set(range(len(run.plan.batches))) - set(wanted))
        if again is None:
            spread.afoot |= await left_at_work(client, job)
        taken = {n for each in spread.afoot.values() for n in range(each.range.start, each.range.stop)}
        spread.waiting.extend(cut_ranges([number for number in wanted if number not in taken], workers))
        start = partial(start_range, client, job, await place_of_ranges(client, deployment), again)
        runs = await _all_made(
            client, spread, partial(count_committed, run, spread.seen, wanted, retries), start
        )
        left = [number for number in wanted if number not in spread.seen]
        told = await failures_told(client, runs) if left else {}
    run.logs |= {number: each["log"] for number, each in told.items()}
    return [(n, told[n]["reason"] if n in told else "its flow run ended without it") for n in left]


async def _all_made(
    client: PrefectClient, spread: Spread, count: Callable[[], None], start: Start
) -> set[UUID]:
    """Return the flow runs there were, when all have ended and none is to be started any more."""
    runs: set[UUID] = set(spread.afoot)
    get_run_logger().info("%d ranges, %d flow runs at work", len(spread.waiting), len(spread.afoot))
    try:
        async with shown_progress(lambda: {"Ranges": spread.table()}):
            while spread.goes_on:
                await _look(client, spread, count, start)
                runs |= set(spread.afoot)
    finally:
        await asyncio.shield(stop_ranges(client, spread))
    if spread.stopped is not None:
        raise spread.stopped
    return runs


async def _look(
    client: PrefectClient,
    spread: Spread,
    count: Callable[[], None],
    start: Start,
) -> None:
    """Look at ledger and flow runs once, start what is due, and wait for the next look."""
    run, began = current_run(), time.monotonic()
    await run.in_thread(count)
    took = time.monotonic() - began
    try:
        under_way = list(spread.afoot)
        for first in range(0, len(under_way), PAGE):
            some = under_way[first : first + PAGE]
            query = FlowRunFilter(id=FlowRunFilterId(any_=some))
            page = {each.id: each for each in await client.read_flow_runs(flow_run_filter=query, limit=PAGE)}
            if any(each.state is not None and each.state.is_final() for each in page.values()):
                await run.in_thread(count)
            for run_id in some:
                await _judge(client, spread, spread.afoot[run_id], page.get(run_id))
        while (part := spread.due()) is not None:
            await start(spread, part)
    except UNSEEN as error:
        get_run_logger().warning("the Prefect server does not answer: flow runs go on unseen: %s", error)
    if spread.goes_on:
        await asyncio.sleep(max(LOOK_SECONDS, took / LOOK_SHARE))


async def _judge(client: PrefectClient, spread: Spread, each: RangeRun, seen: FlowRun | None) -> None:
    """Note what became of one flow run."""
    log = get_run_logger()
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
        spread.ended(each)
    elif state.type == StateType.CRASHED:
        log.warning("%s: another one takes its range", told)
        spread.died(each, told)
    else:  # a person cancelled it, or only a person can mend what it met
        spread.ended(each)
        spread.stopped = spread.stopped or error_of(str(state.name), f"{each.range.name}: {told}")
    return None


async def _death(each: RangeRun, seen: FlowRun) -> str:
    """Return how a flow run that is said to be under way must have died; "" when it may live."""
    run, now = current_run(), time.monotonic()
    if each.process is not None and not each.process.is_alive():
        told, each.gone = each.gone, True  # it may have told the server since it was asked
        return f"ended with its process, status {each.process.exitcode}" if told else ""
    if each.process is None and seen.deployment_id is None and seen.state_type == StateType.PENDING:
        return f"was never begun, Pending for {SPAWN_SECONDS:.0f} s" if each.stuck(now, SPAWN_SECONDS) else ""
    if seen.deployment_id is not None and seen.state_type == StateType.SCHEDULED:
        return ""  # it waits for a worker
    if seen.deployment_id is not None and seen.state_type == StateType.PENDING:
        return f"was Pending for {PENDING_SECONDS:.0f} s" if each.stuck(now) else ""
    await run.in_thread(listen, run, each, now)
    lease = run.spec.batch.lease_seconds
    if not each.silent(now, lease):
        each.waited = False
        return ""
    if each.process is None:
        return f"was silent for {lease:.0f} s"
    return await _stalled(each, each.process, now, lease)


async def _stalled(each: RangeRun, process: BaseProcess, now: float, lease: float) -> str:
    """End a living process of this machine that was silent for too long; return how; "" while it may go on.

    While it lives it keeps its journals, and whoever is to take its range up would meet them.
    """
    limit = each.limit(lease)
    if not each.silent(now, limit):
        if not each.waited:
            text = "%s: process %d lives and was silent for %.0f s: it is ended when that becomes %.0f s"
            get_run_logger().warning(text, each.range.name, process.pid, lease, limit)
        each.waited = True
        return ""
    process.kill()
    await asyncio.to_thread(process.join, END_SECONDS)
    return f"was silent for {limit:.0f} s, and its process {process.pid} was ended"
