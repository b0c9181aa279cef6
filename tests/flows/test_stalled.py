"""Flow runs over ranges whose process has stalled, or was never started: how the run that waits judges."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import psutil
import pytest
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.logging import disable_run_logger
from prefect.states import Pending, Running

from deployments.standin.launch import Standin
from flows import spread
from flows.range_runs import end_process
from tasks.job.spec import StoreSpec
from tasks.ledger.fence import LEASE_SECONDS, STALLED_LEASES
from tasks.run.ranges import SPAWN_SECONDS, BatchRange, RangeRun
from tasks.store.opening import open_store
from tests.flows.counted import rows_in
from tests.support.forked import Template
from tests.support.jobs import opened, write_job, write_prompts
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


def until(reached: Callable[[], bool], log: Path) -> None:
    """Return when something is so in another process; fail with the end of its log."""
    deadline = time.monotonic() + 120
    while not reached():
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.05)  # polling another process


@pytest.mark.restart
@pytest.mark.process
def test_a_stalled_range_is_ended_and_made_by_another(
    tmp_path: Path, template: Template, standin: Standin
) -> None:
    """Its process lives and holds its journals: that is told, then it is ended; the job is made."""
    prompts = write_prompts(tmp_path / "p.jsonl", 48)
    batch = {"rows": 24, "in_flight": 2, "lease_seconds": 3.0}
    job = write_job(tmp_path / "job.yaml", standin.url, prompts, tmp_path / "out", batch=batch)
    log = tmp_path / "log"
    log.touch()
    run = template.start(log, "run", str(job), "--workers", "2")
    parts = (tmp_path / "journals").rglob
    until(lambda: any(parts("*.journal")), log)
    part = str(next(parts("*.journal")))
    (holder,) = (
        process.pid
        for process in psutil.Process(run).children(recursive=True)
        if part in {file.path for file in process.open_files()}
    )
    os.kill(holder, signal.SIGSTOP)
    until(lambda: f"process {holder} lives and was silent for 3 s" in log.read_text(), log)
    until(lambda: f"its process {holder} was ended" in log.read_text(), log)
    assert template.wait(run, 200.0) == 0, log.read_text()[-3000:]
    assert len(rows_in(opened(tmp_path / "out"))) == 48 + 16
