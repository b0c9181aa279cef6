"""Starting and ending a stand-in."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deployments.standin.launch import (
    ROOT,
    StandinError,
    running_standin,
    running_standin_sync,
    start_standin,
)
from tests.deployments.standin.conftest import Caller


@pytest.mark.process
async def test_async_and_sync_twins(tmp_path: Path) -> None:
    """Both context managers give a URL that serves, and end the process."""
    async with running_standin([], tmp_path / "a") as url:
        caller = Caller(url)
        assert (await caller("GET", "/ready")).status == 200
        await caller.session.close()
    with running_standin_sync(["--reasoning-parser", "qwen3"], tmp_path / "b") as other:
        caller = Caller(other)
        assert (await caller("GET", "/model_info")).body["reasoning_parser"] == "qwen3"
        await caller.session.close()


@pytest.mark.process
def test_failure_shows_the_log(tmp_path: Path) -> None:
    """A stand-in that cannot start is an error with its own last words."""
    with pytest.raises(StandinError, match="no_such_fault"):
        start_standin(["--fault", "no_such_fault"], tmp_path / "log")


@pytest.mark.process
def test_end_leaves_nothing(tmp_path: Path) -> None:
    """Ending is final and may be repeated."""
    standin = start_standin([], tmp_path / "log")
    assert os.getpgid(standin.pid) == standin.pid
    cmdline = Path(f"/proc/{standin.pid}/cmdline").read_bytes().split(b"\0")
    assert cmdline[1:3] == [b"-m", b"deployments.standin"]
    standin.end()
    standin.end()
    assert standin.process.returncode == 0


@pytest.mark.process
@pytest.mark.parametrize("argument", ["--help", "--fault=list"])
def test_help(argument: str) -> None:
    """The command line explains itself and says that it is no source of data."""
    done = subprocess.run(
        [sys.executable, "-m", "deployments.standin", argument],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    expected = "Not for data" if argument == "--help" else "strip_think"
    assert expected in " ".join(done.stdout.split())


@pytest.mark.process
def test_standin_needs_neither_torch_nor_transformers_nor_prefect() -> None:
    """The server starts with the small libraries only."""
    code = (
        "import sys, deployments.standin.app;"
        "print(sorted({'torch', 'transformers', 'prefect', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
