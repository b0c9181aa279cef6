"""Runs the main flow in this process: where the `rawseq` command meets Prefect.

With PREFECT_API_URL (or a profile that has one) the run appears on that server; otherwise Prefect starts a
server of its own for the time of the run.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
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


def run_generate(job: JobSpec, console: Console, workers: int = 1) -> Summary:
    """Run `generate_dataset` here and return how it ended; raises as `run_flow`."""
    quiet_prefect(console)
    from flows.generate import generate_dataset

    return run_flow(partial(generate_dataset, job, workers), console)


def run_retry(job: JobSpec, batches: list[int], rejected: list[str], console: Console) -> Summary:
    """Run `retry_batches` here and return how it ended; raises as `run_flow`."""
    quiet_prefect(console)
    from flows.retry import retry_batches

    return run_flow(partial(retry_batches, job, batches, rejected), console)


def run_continue(job: JobSpec, max_new_tokens: int, console: Console) -> Summary:
    """Run `continue_rows` here and return how it ended; raises as `run_flow`."""
    quiet_prefect(console)
    from flows.extend import continue_rows

    return run_flow(partial(continue_rows, job, max_new_tokens), console)


def run_flow(flow: Callable[..., Any], console: Console) -> Summary:
    """Run a flow that makes batches, with a bar, and return how it ended.

    Args:
        flow: called with `return_state=True`.
        console: for the bar and the lines beside it.

    Raises:
        RawseqError: the error that stopped the run.
        FlowFailedError: when the flow crashed for another reason.
    """
    runs: list[Run] = []
    interrupts: list[int] = []

    def opened(run: Run) -> None:
        runs.append(run)
        if console.is_terminal:  # elsewhere the log says it
            run.tell = lambda line: console.print(line, highlight=False, soft_wrap=True)

    OBSERVER.set(opened)
    with moving_bar(console, lambda: runs[0].progress if runs else None):
        state = _run(flow, interrupts)
    summary = runs[0].summary if runs else None
    if summary is not None:
        return summary
    if interrupts:
        raise KeyboardInterrupt
    error = asyncio.run(state.aresult(raise_on_failure=False))
    if isinstance(error, RawseqError):
        raise error
    raise FlowFailedError(f"the flow run ended as {state.type.value}: {state.message}")


def _run(flow: Callable[..., Any], interrupts: list[int]) -> Any:
    with asyncio.Runner(loop_factory=_fast_loop) as runner:
        return runner.run(_returned_state(flow, interrupts))


def _fast_loop() -> asyncio.AbstractEventLoop:
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()


async def _returned_state(flow: Callable[..., Any], interrupts: list[int]) -> Any:
    """Run the flow; Ctrl-C cancels it, and is noted, since Prefect may turn the cancellation into a state."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None

    def stop() -> None:
        interrupts.append(signal.SIGINT)
        task.cancel()

    if sys.platform != "win32":
        loop.add_signal_handler(signal.SIGINT, stop)
    try:
        return await flow(return_state=True)
    except asyncio.CancelledError:
        if interrupts:
            raise KeyboardInterrupt from None
        raise
    finally:
        if sys.platform != "win32":
            loop.remove_signal_handler(signal.SIGINT)
