"""What the flows that make batches share: the chain of one batch, and many chains at once."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from prefect import get_run_logger
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from tasks.batches import Numbered, RenderedBatch
from tasks.errors import OperatorError, RawseqError
from tasks.report import Summary
from tasks.run import current_run
from tasks.steps import check_tokens, commit_batch, generate_tokens, upload_shard

Unit = TypeVar("Unit", bound=Numbered)


async def make_batches(
    units: Sequence[Unit], render: Callable[[Unit], Awaitable[RenderedBatch]]
) -> list[tuple[int, str]]:
    """Run the batches' chains, many at once and with no barrier; return (batch, error) of those that failed.

    The next batch is rendered when the window is about to run dry, never when an earlier batch ends: how many
    are open does not gate dispatch. An error that only a person can mend stops the run; its batches resume.

    Args:
        units: what `render` takes, one per batch, in order.
        render: the step that opens a batch.
    """
    failures: list[tuple[int, str]] = []
    dispatch = current_run().dispatch
    assert dispatch is not None
    try:
        async with asyncio.TaskGroup() as group:
            for unit in units:
                await dispatch.hungry()
                rendered = await _rendered(unit, render, failures)
                if rendered is None:
                    continue
                chain = group.create_task(_attempt(rendered, failures), name=rendered.batch.name)
                await _opened(rendered, chain)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None  # the group cancelled the others; the first says why
    return sorted(failures)


async def _rendered(
    unit: Unit, render: Callable[[Unit], Awaitable[RenderedBatch]], failures: list[tuple[int, str]]
) -> RenderedBatch | None:
    try:
        return await render(unit)
    except OperatorError:
        raise
    except RawseqError as error:
        get_run_logger().error("batch %s failed: %s", unit.name, error)
        failures.append((unit.index, str(error)))
        return None


async def _opened(rendered: RenderedBatch, chain: asyncio.Task[None]) -> None:
    """Return when dispatch has the batch's rows, or the chain ended before that."""
    opened = asyncio.ensure_future(rendered.opened.wait())
    await asyncio.wait((opened, chain), return_when=asyncio.FIRST_COMPLETED)
    opened.cancel()


async def _attempt(rendered: RenderedBatch, failures: list[tuple[int, str]]) -> None:
    try:
        await make_batch(rendered)
    except OperatorError:
        raise
    except RawseqError as error:
        get_run_logger().error("batch %s failed: %s", rendered.batch.name, error)
        failures.append((rendered.batch.index, str(error)))


async def make_batch(rendered: RenderedBatch) -> None:
    """Take one opened batch through its other four steps."""
    try:
        await generate_tokens(rendered)
        checked = await check_tokens(rendered)
        files = await upload_shard(rendered, checked)
        del checked
        await commit_batch(rendered, files)
    finally:
        rendered.close()


def end_state(summary: Summary) -> State[Any]:
    """Return how the flow run ends: Failed with the reason, or Completed with the share."""
    if summary.problem:
        return Failed(message=summary.problem)
    return Completed(message=f"{summary.rows['accepted']} of {summary.rows['total']} rows accepted")
