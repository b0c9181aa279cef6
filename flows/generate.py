"""The main job: prompts in, checked raw token ids out, batch by batch."""

import asyncio
from collections.abc import Sequence
from typing import Any

from prefect import flow, get_run_logger, runtime
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from tasks.errors import OperatorError, RawseqError
from tasks.run import current_run, open_run
from tasks.spec import JobSpec
from tasks.steps import (
    check_tokens,
    commit_batch,
    ensure_servers,
    generate_tokens,
    load_credentials,
    plan_batches,
    publish_dataset,
    render_prompts,
    shown_progress,
    upload_shard,
)
from tasks.storage.ledger import Batch


@flow(name="generate-dataset", flow_run_name="{job.name}", persist_result=False)
async def generate_dataset(job: JobSpec) -> State[Any]:
    """Make every row of the job that its ledger does not list yet; running it again resumes.

    Args:
        job: What to generate, with what, to where.
    """
    credentials = await load_credentials(job.store)
    async with open_run(job, str(runtime.flow_run.id), credentials):
        pending = await plan_batches()
        failures: list[tuple[int, str]] = []
        if pending:
            await ensure_servers()
            async with shown_progress():
                failures = await make_batches(pending)
        summary = await publish_dataset(failures)
    if summary.problem:
        return Failed(message=summary.problem)
    return Completed(message=f"{summary.rows['accepted']} of {summary.rows['total']} rows accepted")


async def make_batches(batches: Sequence[Batch]) -> list[tuple[int, str]]:
    """Run the batches' chains, many at once and with no barrier; return (batch, error) of those that failed.

    The next batch starts when the window is about to run dry, never when an earlier batch ends: how many are
    open does not gate dispatch. An error that only a person can mend stops the run; its batches resume later.
    """
    failures: list[tuple[int, str]] = []

    async def attempt(batch: Batch) -> None:
        try:
            await make_batch(batch)
        except OperatorError:
            raise
        except RawseqError as error:
            get_run_logger().error("%s failed: %s", batch.name, error)
            failures.append((batch.index, str(error)))

    dispatch = current_run().dispatch
    assert dispatch is not None
    try:
        async with asyncio.TaskGroup() as group:
            for batch in batches:
                await dispatch.hungry()
                group.create_task(attempt(batch), name=batch.name)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None  # the group cancelled the others; the first says why
    return sorted(failures)


async def make_batch(batch: Batch) -> None:
    """Take one batch through its five steps."""
    rendered = await render_prompts(batch)
    try:
        await generate_tokens(rendered)
        checked = await check_tokens(rendered)
        files = await upload_shard(rendered, checked)
        del checked
        await commit_batch(rendered, files)
    finally:
        rendered.close()
