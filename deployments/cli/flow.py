"""Runs the main flow in this process: where the `rawseq` command meets Prefect.

With PREFECT_API_URL (or a profile that has one) the run appears on that server; otherwise Prefect starts a
server of its own for the time of the run.
"""

import asyncio
import atexit
import contextlib
import functools
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import httpx
from rich.console import Console

from deployments.cli.console import Terminal, escaped, moving_bar
from deployments.local.server_settings import SERVER_SETTINGS
from tasks.errors import JobError, RawseqError, SurroundingsError
from tasks.job.redaction import redact
from tasks.job.spec import JobSpec, StoreSpec
from tasks.report.summary import Summary
from tasks.run.run import OBSERVER, Run

SERVER_START_SECONDS: Final = 150
"""How long Prefect's temporary server may take to answer: on its first start it migrates an empty database, a
few seconds on a quiet machine; Prefect's own 20 seconds were not enough on a busy one."""


MOST_JOB_BYTES: Final = 512 * 1024 - 8192
"""A server's PREFECT_SERVER_API_MAX_PARAMETER_SIZE is 512 KiB; the other parameters need little."""

END_WITH_US: Final = 'read -r ended || { kill "$1" && sleep 10 && kill -9 "$1"; } 2>/dev/null'
"""A shell's line that ends a process once its input closes without a word: then who would write is dead."""

_LOG = logging.getLogger("rawseq.flow")


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
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", str(SERVER_START_SECONDS))
    for name, value in SERVER_SETTINGS.items():  # of the server that Prefect starts when there is none
        os.environ.setdefault(name, value)


@functools.cache
def end_server_with_us() -> None:
    """Let the temporary server that Prefect may start end with this process: `kill -9` runs no `atexit`."""
    import prefect
    from prefect.settings import get_current_settings

    if get_current_settings().api.url or sys.platform == "win32":
        return
    from prefect.server.api import server

    kind = getattr(server, "SubprocessASGIServer", None)
    start = getattr(kind, "_run_uvicorn_command", None)
    if kind is None or start is None:
        _LOG.warning(
            "Prefect %s starts its temporary server in a way that is not known here: should this command be "
            "killed, end that server by hand",
            prefect.__version__,
        )
        return

    def start_watched(self: Any) -> "subprocess.Popen[Any]":
        process: subprocess.Popen[Any] = start(self)
        end_with_us(process.pid)
        return process

    kind._run_uvicorn_command = start_watched


def end_with_us(pid: int) -> None:
    """End a process when this one was killed; a shell in a session of its own waits for that at a pipe."""
    theirs, ours = os.pipe()  # no process that we start inherits our end
    watch = subprocess.Popen(
        ["/bin/sh", "-c", END_WITH_US, "sh", str(pid)],
        stdin=theirs,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(theirs)

    def leave() -> None:
        """Let the shell go in good order: whoever started the process ends it."""
        with contextlib.suppress(OSError):
            os.write(ours, b"ended\n")
        os.close(ours)
        watch.wait()

    atexit.register(leave)


class EscapedLines(logging.Formatter):
    """Gives a terminal what another formatter makes of a record, without what would act upon it."""

    def __init__(self, inner: logging.Formatter | None) -> None:
        super().__init__()
        self._inner = inner or logging.Formatter()

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's lines, escaped."""
        return escaped(self._inner.format(record))


class _ToldOnce(logging.Filter):
    """Keeps what this command tells itself, in one line, from the console; the Prefect server gets all."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Leave out our own errors with their tracebacks, and the closing state of what failed."""
        error = record.exc_info[1] if record.exc_info else None
        ended = record.levelno >= logging.ERROR and record.getMessage().startswith("Finished in state")
        return not (ended or isinstance(error, RawseqError))


def run_generate(job: JobSpec, console: Console, workers: int = 1) -> Summary:
    """Run `generate_dataset` here and return how it ended; raises as `run_flow`."""
    check_size(job)
    quiet_prefect(console)
    from flows.generate import generate_dataset

    return run_flow(partial(generate_dataset, job, workers), console)


def run_retry(
    job: JobSpec, batches: list[int], rejected: list[str], server: str | None, workers: int, console: Console
) -> Summary:
    """Run `retry_batches` here and return how it ended; raises as `run_flow`."""
    check_size(job)
    quiet_prefect(console)
    from flows.retry import retry_batches

    return run_flow(partial(retry_batches, job, batches, rejected, workers, server), console)


def run_continue(job: JobSpec, max_new_tokens: int, workers: int, console: Console) -> Summary:
    """Run `continue_rows` here and return how it ended; raises as `run_flow`."""
    check_size(job)
    quiet_prefect(console)
    from flows.extend import continue_rows

    return run_flow(partial(continue_rows, job, max_new_tokens, workers), console)


def check_size(job: JobSpec) -> None:
    """Raise JobError for a job that is larger than what Prefect takes as the parameter of a run."""
    size = len(job.model_dump_json())
    if size > MOST_JOB_BYTES:
        raise JobError(
            f"expected a job of at most {MOST_JOB_BYTES} bytes, which is what Prefect takes, got {size}: let "
            "prompts.sources name folders or globs, not each file"
        )


def run_flow(flow: Callable[..., Any], console: Console) -> Summary:
    """Run a flow that makes batches, with a bar, and return how it ended.

    Args:
        flow: called with `return_state=True`.
        console: for the bar and the lines beside it.

    Raises:
        RawseqError: the error that stopped the run.
        SurroundingsError: the Prefect server does not answer, or refuses.
        FlowFailedError: when the flow crashed for another reason.
    """
    end_server_with_us()
    for handler in logging.getLogger().handlers:  # Prefect's console, since its import
        handler.addFilter(_ToldOnce())
        handler.setFormatter(EscapedLines(handler.formatter))
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
    if summary is not None:  # the ledger has it, whatever became of Prefect
        return summary
    if interrupts:
        raise KeyboardInterrupt
    error = state if isinstance(state, Exception) else asyncio.run(state.aresult(raise_on_failure=False))
    if isinstance(error, RawseqError):
        raise error
    raise FlowFailedError(f"the flow run ended as {state.type.value}: {redact(state.message or '')}")


def block_keys(store: StoreSpec) -> Mapping[str, str] | None:
    """Ask Prefect for the S3 keys in the block that a store section names.

    Raises:
        JobError: no such block, or other data in it.
        SurroundingsError: the Prefect server does not answer, or refuses.
    """
    quiet_prefect(Terminal(stderr=True))
    from prefect.exceptions import PrefectException

    from tasks.steps import load_credentials

    end_server_with_us()
    try:
        return asyncio.run(load_credentials(store))
    except (httpx.HTTPError, OSError, PrefectException, RuntimeError) as error:
        raise _unreachable(error) from None


def _run(flow: Callable[..., Any], interrupts: list[int]) -> Any:
    with asyncio.Runner(loop_factory=_fast_loop) as runner:
        return runner.run(_returned_state(flow, interrupts))


def _fast_loop() -> asyncio.AbstractEventLoop:
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()


def _unreachable(error: BaseException) -> SurroundingsError:
    """Return what to tell of a Prefect server that failed: where it should be, and the first cause."""
    from prefect.settings import get_current_settings

    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    url = redact(str(get_current_settings().api.url or ""))
    said = next(iter(redact(str(cause)).splitlines()), "")
    advice = "start it, or unset PREFECT_API_URL: then Prefect starts one for the time of the run"
    return SurroundingsError(
        f"Prefect server {url or 'of this run'}: expected its API, got {type(cause).__name__}: {said}"
        + (f"; {advice}" if url else "")
    )


async def _returned_state(flow: Callable[..., Any], interrupts: list[int]) -> Any:
    """Run the flow; Ctrl-C cancels it, and is noted, since Prefect may turn the cancellation into a state."""
    from prefect.exceptions import Abort, PrefectException

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
    except Abort as error:  # a person's, in the UI: see `flows.chain.clean_stop`
        return FlowFailedError(f"flow run: {error}")
    except (httpx.HTTPError, OSError, PrefectException, RuntimeError) as error:
        # what a flow raises becomes its state: this is Prefect's own, which says RuntimeError to an outage
        return _unreachable(error)
    finally:
        if sys.platform != "win32":
            loop.remove_signal_handler(signal.SIGINT)
