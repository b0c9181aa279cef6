"""Flow runs over ranges whose process has stalled, or was never started: how the run that waits judges."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.logging import disable_run_logger
from prefect.states import Pending, Running

from flows import spread
from flows.range_runs import end_process
from tasks.job.spec import StoreSpec
from tasks.ledger.fence import LEASE_SECONDS, STALLED_LEASES
from tasks.run.ranges import SPAWN_SECONDS, BatchRange, RangeRun
from tasks.store.opening import open_store
from tests.support.small_jobs import job_spec


@pytest.fixture
def child() -> Iterator[BaseProcess]:
    """A process that has stalled: no signal but SIGKILL reaches it."""
    process = multiprocessing.get_context("fork").Process(target=signal.pause)
    process.start()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    yield process
    process.kill()
    process.join()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The run that has handed the ranges out, as far as it is asked; its store holds no sign of life."""

    async def in_thread(call: Any, *arguments: Any) -> Any:
        return call(*arguments)

    spec = job_spec(tmp_path, "none.jsonl")
    known = SimpleNamespace(
        spec=spec, store=open_store(StoreSpec(uri=str(tmp_path / "store")), "job"), in_thread=in_thread
    )
    monkeypatch.setattr(spread, "current_run", lambda: known)
    with disable_run_logger():
        yield


def silent_for(seconds: float, process: BaseProcess | None) -> RangeRun:
    """Return a flow run that was last heard so long ago."""
    heard = time.monotonic() - seconds
    return RangeRun(uuid4(), BatchRange(0, 1, 1), process, since=heard, heard=heard)


@pytest.mark.parametrize(
    ("seconds", "ended"),
    [
        pytest.param(LEASE_SECONDS - 10, False, id="shows itself"),
        pytest.param(LEASE_SECONDS + 10, False, id="silent, waited for"),
        pytest.param(STALLED_LEASES * LEASE_SECONDS + 10, True, id="silent for too long, ended"),
    ],
)
async def test_a_living_process_is_not_called_dead(
    run: None, child: BaseProcess, seconds: float, ended: bool
) -> None:
    """While it lives it holds its journals: it is waited for, and ended before another takes over."""
    each = silent_for(seconds, child)
    why = await spread._death(each, FlowRun(flow_id=uuid4(), state=Running()))
    assert bool(why) is ended is not child.is_alive()
    assert each.waited is (LEASE_SECONDS < seconds < STALLED_LEASES * LEASE_SECONDS)
    assert not ended or f"process {child.pid} was ended" in why


async def test_a_silent_run_of_elsewhere_is_dead(run: None) -> None:
    """Nothing but its silence tells how it is: a lease is all it gets."""
    why = await spread._death(silent_for(LEASE_SECONDS + 10, None), FlowRun(flow_id=uuid4(), state=Running()))
    assert why == f"was silent for {LEASE_SECONDS:.0f} s"


@pytest.mark.parametrize("late", [False, True], ids=["it may start", "it was never started"])
async def test_a_ghost_is_not_waited_for(run: None, late: bool) -> None:
    """Its parent was killed before it started the process: nothing will ever run it."""
    each = RangeRun(uuid4(), BatchRange(0, 1, 1))
    each.taken = time.monotonic() - SPAWN_SECONDS + (-1 if late else 10)
    why = await spread._death(each, FlowRun(flow_id=uuid4(), state=Pending(), state_type=StateType.PENDING))
    assert why == (f"was never begun, Pending for {SPAWN_SECONDS:.0f} s" if late else "")


async def test_a_stalled_process_does_not_keep_a_run_that_is_stopped(
    run: None, child: BaseProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python itself waits at its end for the processes that it started: for this one for ever."""
    monkeypatch.setattr("flows.range_runs.END_SECONDS", 0.1)
    child.terminate()
    await end_process(child)
    assert child.exitcode == -signal.SIGKILL
