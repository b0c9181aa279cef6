"""The Prefect server goes away in the middle of a run and comes back after its end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deployments.standin.launch import Standin
from tests.conftest import free_port, prefect_server
from tests.flows.counted import rows_in
from tests.flows.prefect_reads import of_run, runs_of
from tests.support.jobs import opened, write_job, write_prompts

WAIT_SECONDS = 480.0
POLL_SECONDS = 0.05


def wait_until(holds: Callable[[], bool], log: Path) -> None:
    """Return when something holds; polls what another process leaves in the store."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(POLL_SECONDS)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_prefect_is_away_from_the_first_receipt_to_the_last(
    tmp_path: Path, rawseq_env: dict[str, str], standin: Standin
) -> None:
    """Generation goes on without it; the run waits with its end until it is told, and ends Completed."""
    port, home, log = free_port(), tmp_path / "prefect", tmp_path / "log"
    home.mkdir()
    api = f"http://127.0.0.1:{port}/api"
    out, prompts = tmp_path / "out", write_prompts(tmp_path / "p.jsonl", 96)
    job = write_job(tmp_path / "job.yaml", standin.url, prompts, out, batch={"rows": 16, "in_flight": 4})
    env = rawseq_env | {"PREFECT_API_URL": api, "PREFECT_CLIENT_MAX_RETRIES": "1"}
    command = [sys.executable, "-m", "deployments.cli.main", "run", str(job)]

    def receipts() -> int:
        return len(list(out.rglob("receipts/*.json")))

    with log.open("wb") as sink, prefect_server(home, port) as server:
        run = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=sink, stderr=sink)
        try:
            wait_until(lambda: receipts() > 0, log)
            os.killpg(server.pid, signal.SIGKILL)
            before = receipts()
            assert before < 6, "the server died too late to show anything"
            wait_until(lambda: bool(list(out.rglob("dataset.json"))), log)
            assert receipts() == 6
            wait_until(lambda: "waiting for the Prefect server" in log.read_text(), log)
            assert run.poll() is None
            with prefect_server(home, port):
                assert run.wait(WAIT_SECONDS) == 0, log.read_text()[-3000:]
                _told(api)
        finally:
            run.kill()
            run.wait()
    assert len(rows_in(opened(out))) == 96 + 32


def _told(api: str) -> None:
    """The server knows how it ended, and has its closing table, although it was away meanwhile."""
    (run,) = runs_of(api, "t")
    assert run["state"]["name"] == "Completed"
    assert "of 128 rows accepted" in run["state"]["message"]
    assert any((each["key"] or "").startswith("verdicts-") for each in of_run(api, "artifacts", run["id"]))
