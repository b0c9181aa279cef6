"""What the flows that make batches share: the chain of one batch, and many chains at once."""

import asyncio
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar
from uuid import UUID

from prefect import get_client, get_run_logger, runtime
from prefect.client.schemas.objects import State
from prefect.exceptions import Abort, TerminationSignal
from prefect.states import Cancelled, Completed, Failed

from flows.view import show_summary
from tasks.errors import OperatorError, RawseqError, TakenError
from tasks.run.batch import Numbered, RenderedBatch, close
from tasks.run.run import current_run
from tasks.steps import (
    UNSEEN,
    check_tokens,
    commit_batch,
    generate_tokens,
    journal_room,
    left_by_others,
    publish_dataset,
    upload_shard,
)

OUTAGE_SECONDS = 3600.0
"""How long a run that has done its work waits for the Prefect server, to tell it so."""

OUTAGE_LOOK_SECONDS = 2.0

CANCEL_LOOK_SECONDS = 10.0
"""How often a run that no worker watches looks whether a person has cancelled it: one small GET."""

CANCELLED = "cancelled in Prefect; what is committed stays, the same command resumes"

RUN_OF_WORKER = "PREFECT__FLOW_RUN_ID"
"""Variable in which Prefect's worker names the run that it started, and that it watches itself."""

Unit = TypeVar("Unit", bound=Numbered)


@asynccontextmanager
async def clean_stop() -> AsyncIterator[None]:
    """Let SIGTERM, or *Cancel* in the UI, cancel the flow's own task, so that everything open is closed.

    Prefect's handler of SIGTERM raises at whatever line the main thread is, which may be inside a row's task.
    """
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    if task is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    why: list[BaseException] = []

    def stop(reason: BaseException) -> None:
        why.append(reason)
        task.cancel()

    before = signal.getsignal(signal.SIGTERM)
    loop.add_signal_handler(signal.SIGTERM, lambda: stop(TerminationSignal(signal=signal.SIGTERM)))
    watcher = asyncio.create_task(_watch_cancelled(stop), name="rawseq-cancel")
    try:
        yield
    except asyncio.CancelledError:
        if not why:
            raise
        task.uncancel()
        if isinstance(why[0], Abort):  # with its state Prefect's engine ends quietly, and not as Crashed
            why[0].state = await _tell_cancelled()  # type: ignore[attr-defined]
        raise why[0] from None
    finally:
        watcher.cancel()
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, before)


async def _watch_cancelled(stop: Callable[[BaseException], None]) -> None:
    """Stop a run that a person cancels in Prefect and that no worker watches, which would do the same."""
    run_id = runtime.flow_run.id
    if run_id is None or os.environ.get(RUN_OF_WORKER) == str(run_id):
        return
    while True:
        await asyncio.sleep(CANCEL_LOOK_SECONDS)
        with suppress(*UNSEEN):
            async with get_client() as client:
                seen = (await client.read_flow_run(UUID(str(run_id)))).state
            if seen is not None and (seen.is_cancelling() or seen.is_cancelled()):
                get_run_logger().warning(CANCELLED)
                stop(Abort(CANCELLED))
                return


async def _tell_cancelled() -> State[Any]:
    """Set the run's last state, which else stays Cancelling for ever; return it."""
    state: State[Any] = Cancelled(message=CANCELLED)
    with suppress(*UNSEEN):
        async with get_client() as client:
            await client.set_flow_run_state(UUID(str(runtime.flow_run.id)), state, force=True)
    return state


async def make_batches(
    units: Sequence[Unit], render: Callable[[Unit], Awaitable[RenderedBatch]]
) -> list[tuple[int, str]]:
    """Run the batches' chains, many at once and with no barrier; return (batch, error) of those that failed.

    A batch that another living worker has is left to it, and taken when that worker falls silent. An error
    that only a person can mend stops the run; its batches resume.

    Args:
        units: what `render` takes, one per batch, in order.
        render: the step that opens a batch.
    """
    failures: list[tuple[int, str]] = []
    told = False
    while units:
        taken: list[Unit] = []
        try:
            async with asyncio.TaskGroup() as group:
                await _feed(group, units, render, failures, taken)
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None  # the group cancelled the others; the first says why
        units, overtaken = await left_by_others(taken)
        failures += overtaken
        if units and not told:
            names = ", ".join(unit.name for unit in units[:3]) + (", ..." if len(units) > 3 else "")
            current_run().tell(f"{len(units)} batches are waited for, other runs have them: {names}")
            told = True
    return sorted(failures)


async def _feed(
    group: asyncio.TaskGroup,
    units: Sequence[Unit],
    render: Callable[[Unit], Awaitable[RenderedBatch]],
    failures: list[tuple[int, str]],
    taken: list[Unit],
) -> None:
    """Open one batch after another, each when the window is about to run dry, never when an earlier one ends.

    How many are open does not gate dispatch; how much their journals hold on the disk does.
    """
    dispatch = current_run().dispatch
    assert dispatch is not None
    for unit in units:
        await dispatch.hungry()
        await journal_room()
        with _noted(unit, failures, taken):
            rendered = await render(unit)
            rows = len(rendered.turns.row_ids)
            current_run().book.opened(unit.index, unit.name, rows, rendered.journal.done)
            chain = group.create_task(_chain(unit, rendered, failures, taken), name=unit.name)
            await _opened(rendered, chain)


async def _opened(rendered: RenderedBatch, chain: asyncio.Task[None]) -> None:
    """Return when dispatch has the batch's rows, or the chain ended before that."""
    opened = asyncio.ensure_future(rendered.opened.wait())
    await asyncio.wait((opened, chain), return_when=asyncio.FIRST_COMPLETED)
    opened.cancel()


@contextmanager
def _noted(unit: Numbered, failures: list[tuple[int, str]], taken: list[Any]) -> Iterator[None]:
    """Turn the failure of one batch into an entry, so that the others go on."""
    try:
        yield
    except OperatorError:
        raise
    except TakenError as error:
        get_run_logger().info("batch %s: %s", unit.name, error)
        current_run().book.left(unit.index)
        taken.append(unit)
    except RawseqError as error:
        get_run_logger().error("batch %s failed: %s", unit.name, error)
        current_run().book.failed(unit.index, unit.name, str(error))
        failures.append((unit.index, str(error)))


async def _chain(
    unit: Numbered, rendered: RenderedBatch, failures: list[tuple[int, str]], taken: list[Any]
) -> None:
    """Take one opened batch through its other four steps."""
    run = current_run()
    with _noted(unit, failures, taken):
        try:
            await generate_tokens(rendered)
            async with run.finishing.hold(rendered.journal.size):
                run.book.goes_to(unit.index, "checking")
                checked = await check_tokens(rendered)
                run.book.goes_to(unit.index, "uploading")
                files = await upload_shard(rendered, checked)
                del checked
            await commit_batch(rendered, files)
            run.book.committed(unit.index)
        finally:
            await run.in_thread(close, run, rendered)


async def close_run(failures: Sequence[tuple[int, str]]) -> State[Any]:
    """Publish and show what is committed; return how the flow run ends: Failed with the reason, or well."""
    summary = await publish_dataset(failures)
    await wait_for_prefect()
    await show_summary(summary)
    skipped = f"{summary.batches_skipped} of {summary.batches_total} batches were committed before"
    if summary.problem:
        return Failed(message=f"{summary.problem}; {skipped}")
    accepted = f"{summary.rows['accepted']} of {summary.rows['total']} rows accepted"
    return Completed(message=f"{accepted}; {skipped}")


async def wait_for_prefect() -> None:
    """Return when the Prefect server answers, so that it learns how this run ended.

    In an outage Prefect's own client gives up after a minute, and a run that has done all its work would stay
    Running, or be called Crashed. A process whose parent was killed does not wait: the temporary server of
    that one is gone for good, and the next run finds what is done in the ledger.
    """
    parent = multiprocessing.parent_process()
    left = parent is not None and not parent.is_alive()
    until = time.monotonic() + (0.0 if left else OUTAGE_SECONDS)
    async with get_client() as client:
        while (error := await client.api_healthcheck()) is not None and time.monotonic() < until:
            get_run_logger().warning("all is committed; waiting for the Prefect server: %s", error)
            await asyncio.sleep(OUTAGE_LOOK_SECONDS)
