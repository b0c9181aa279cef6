"""What a local restart keeps, what it says of the rest, and how it is undone; over real processes."""

import asyncio
import functools
import json
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import psutil
import pytest

from deployments.standin.launch import Standin
from tasks.errors import SurroundingsError
from tasks.fleet.ensure import ServerReport, ensure_servers, wait_ready
from tasks.sglang.client import Access, ServerClient
from tasks.sglang.restart.conditions import Conditions, conditions_of, not_kept
from tasks.sglang.restart.process import find_server
from tests.support.embedded import Nursery, fleet_settings

PARSER = ("--reasoning-parser", "qwen3")


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    """Servers of one test, and whatever was started in their place."""
    nursery = Nursery(tmp_path)
    yield nursery
    nursery.end_successors()


async def restart(standin: Standin, folder: Path, **spec: object) -> ServerReport:
    """Have a server made fit by a restart that logs into a folder."""
    settings = fleet_settings(standin.url, restart="local", **spec)  # type: ignore[arg-type]
    (report,) = await ensure_servers(attrs.evolve(settings, log_dir=folder))
    return report


async def test_a_successor_runs_as_its_predecessor_did(nursery: Nursery, tmp_path: Path) -> None:
    """Niceness, CPUs and limits are there before its first thread; what else there is is said; undone."""
    standin = nursery.start(*PARSER)
    before = psutil.Process(standin.process.pid)
    before.nice(before.nice() + 3)
    before.cpu_affinity(before.cpu_affinity()[-1:])
    resource.prlimit(before.pid, resource.RLIMIT_NOFILE, (777, 888))
    former = find_server(standin.url)
    report = await restart(standin, tmp_path)
    now = find_server(standin.url)
    kept = attrs.evolve(former.conditions, output=now.conditions.output)
    assert now.conditions == kept
    assert (now.env, now.cwd) == (former.env, former.cwd)
    assert {tuple(os.sched_getaffinity(t.id)) for t in psutil.Process(now.pid).threads()} == {kept.cpus}
    assert report.restarted is not None
    assert report.restarted.lost == (
        f"its output went to {former.conditions.output}, now to {report.restarted.log}",
    )
    script = report.restarted.undo
    assert script is not None
    assert f"  undo    {sys.executable} {script}" in report.lines()
    assert stat.S_IMODE(script.stat().st_mode) == 0o600
    await undo_it(script, standin, former.argv)
    assert attrs.evolve(find_server(standin.url).conditions, output="") == attrs.evolve(kept, output="")


async def undo_it(script: Path, standin: Standin, argv: tuple[str, ...]) -> None:
    """Run a script that undoes a restart: the former command line runs again; twice is once."""
    run = functools.partial(subprocess.run, capture_output=True, text=True, cwd="/", check=True)
    ran = await asyncio.to_thread(run, [sys.executable, str(script)])
    assert ": started process " in ran.stdout
    async with ServerClient(standin.url, Access()) as client:
        await wait_ready(client, 100.0)
    assert find_server(standin.url).argv == argv
    ran = await asyncio.to_thread(run, [sys.executable, str(script)])
    assert "runs with that command line already" in ran.stdout


async def test_a_start_that_fails_starts_the_old_line_again(
    nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new command line ends at once: the server serves as before, the error names both and the reason."""
    standin = nursery.start(*PARSER)
    before = find_server(standin.url)
    spoilt = (*before.argv, "--port", "nonsense")
    monkeypatch.setattr("tasks.sglang.restart.restart._argv_without", lambda *_: spoilt)
    with pytest.raises(SurroundingsError, match=r"(?s)ended with status.*nonsense.*was started again"):
        await restart(standin, tmp_path)
    again = find_server(standin.url)
    assert (again.argv, again.env, again.cwd) == (before.argv, before.env, before.cwd)
    assert again.pid != before.pid
    assert list(tmp_path.glob("rawseq-undo-*")) == []


async def test_a_script_that_cannot_be_written_stops_no_server(nursery: Nursery, tmp_path: Path) -> None:
    """What undoes a restart is written before the first signal."""
    standin = nursery.start(*PARSER)
    before = find_server(standin.url)
    (tmp_path / f"rawseq-undo-{before.port}-{before.pid}.py").mkdir()
    with pytest.raises(SurroundingsError, match=r"which undoes the restart, found .*rawseq-undo"):
        await restart(standin, tmp_path)
    assert find_server(standin.url) == before


def test_what_is_not_kept_is_told(tmp_path: Path) -> None:
    """Each in a phrase; equal ones, and what the system does not tell, in none."""
    number = resource.RLIMIT_NOFILE
    before = Conditions(5, (0, 1), ((number, 10, 20),), "bind:0", "0::/a", "/dev/pts/3")
    now = Conditions(0, (0,), ((number, 9, 20),), "", "0::/b", "/log")
    assert not_kept(before, now, Path("/log")) == (
        "niceness 5, now 0",
        "CPUs [0, 1], now [0]",
        "RLIMIT_NOFILE [10, 20], now [9, 20] (soft, hard)",
        "memory policy bind:0, now default",
        "control group '0::/a', now '0::/b'",
        "its output went to /dev/pts/3, now to /log",
    )
    assert not_kept(now, now, Path("/log")) == not_kept(Conditions(), Conditions(), Path("/log")) == ()


def test_a_process_that_tells_nothing_has_no_conditions(tmp_path: Path) -> None:
    """It has ended: nothing is known of it, and nothing fails."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert conditions_of(process.pid) == Conditions()
    assert json.dumps(attrs.asdict(Conditions()))
