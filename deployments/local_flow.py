"""Runs the main flow in this process: where the `rawseq` command meets Prefect.

With PREFECT_API_URL (or a profile that has one) the run appears on that server; otherwise Prefect starts a
server of its own for the time of the run.
"""

import asyncio
import os
import sys
from typing import Any

from rich.console import Console

from deployments.console import moving_bar
from tasks.errors import RawseqError
from tasks.report import Summary
from tasks.run import OBSERVER, Run
from tasks.spec import JobSpec


class FlowFailedError(RawseqError):
    """The flow ended without a summary, and not by one of our own errors."""


def quiet_prefect(console: Console) -> None:
    """Send Prefect's console log to stderr: everything without a terminal, warnings only beside a bar.

    Must be called before Prefect is imported; what the environment already says stays.
    """
    if console.is_terminal:
        os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "ERROR")
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("PREFECT_LOGGING_COLORS", "false")


def run_generate(job: JobSpec, console: Console) -> Summary:
    """Run `generate_dataset` here and return how it ended.

    Raises:
        RawseqError: the error that stopped the run.
        FlowFailedError: when the flow crashed for another reason.
    """
    quiet_prefect(console)
    runs: list[Run] = []

    def opened(run: Run) -> None:
        runs.append(run)
        if console.is_terminal:  # elsewhere the log says it
            run.tell = lambda line: console.print(line, highlight=False, soft_wrap=True)

    OBSERVER.set(opened)
    with moving_bar(console, lambda: runs[0].progress if runs else None):
        state = _run_flow(job)
    summary = runs[0].summary if runs else None
    if summary is not None:
        return summary
    error = asyncio.run(state.aresult(raise_on_failure=False))
    if isinstance(error, RawseqError):
        raise error
    raise FlowFailedError(f"the flow run ended as {state.type.value}: {state.message}")


def _run_flow(job: JobSpec) -> Any:
    from flows.generate import generate_dataset

    if sys.platform != "win32":
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_returned_state(generate_dataset, job))
    return asyncio.run(_returned_state(generate_dataset, job))


async def _returned_state(flow: Any, job: JobSpec) -> Any:
    return await flow(job, return_state=True)
