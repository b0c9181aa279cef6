"""A command that is killed, with the Prefect server that was started for it (`make test-restart`)."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from deployments.standin.launch import Standin
from tests.support.jobs import write_job, write_prompts

pytestmark = [pytest.mark.restart, pytest.mark.process]


def test_a_killed_command_leaves_no_prefect_server(tmp_path: Path, standin: Standin) -> None:
    """`kill -9` of `rawseq run` without a Prefect server: the temporary one, and all else of it, ends."""
    prompts = write_prompts(tmp_path / "p.jsonl", 200)
    job = write_job(tmp_path / "job.yaml", standin.url, prompts, tmp_path / "out", batch={"in_flight": 1})
    env = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    log = tmp_path / "log"
    with log.open("wb") as sink:
        command = subprocess.Popen(
            [sys.executable, "-m", "deployments.cli.main", "run", str(job)],
            env=env | {"PREFECT_HOME": str(tmp_path / "home")},
            stdout=sink,
            stderr=sink,
        )
    deadline = time.monotonic() + 120
    while not any((tmp_path / "journals").rglob("*.journal")):
        assert command.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.05)  # polling for the first finished row
    left = psutil.Process(command.pid).children(recursive=True)
    assert any("uvicorn" in process.cmdline() for process in left)
    command.kill()
    command.wait()
    _, alive = psutil.wait_procs(left, 30)
    assert [process.cmdline() for process in alive] == []
