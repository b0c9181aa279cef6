"""A spread run on a work pool, seen by a person: cancelled from the UI, and with the Prefect server away.

`make test-postgres` runs it: real workers, Prefect on PostgreSQL.
"""

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from deployments.local.presets import STANDIN_MODEL
from deployments.local.server_settings import SERVER_SETTINGS
from deployments.standin.launch import Standin, start_standin
from tests.conftest import free_port, prefect_server
from tests.flows.counted import prompts_started, rows_in
from tests.flows.machines import SERVE, WAIT_SECONDS, machine, ready, register, started, wait_for
from tests.flows.postgres import running_postgres
from tests.flows.prefect_reads import ask, runs_of
from tests.support.jobs import opened, write_prompts
from tests.support.prefect_api import ask as patiently

RECORDS, BATCH = 40, 5
ROWS = 53
"""Every third of the 40 records has two turns."""

FINAL = {"COMPLETED", "CANCELLED", "FAILED", "CRASHED"}

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Standin]:
    """A stand-in whose rows take four seconds each, and depend on prompt and seed only."""
    arguments = ["--enable-deterministic-inference", "--fault", "slow_reply=4"]
    standin = start_standin(arguments, tmp_path / "standin.log")
    yield standin
    standin.end()


def switch(standin: Standin, **faults: Any) -> None:
    """Switch faults of a running server on (an argument, True) or off (None)."""
    body, kind = json.dumps(faults).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{standin.url}/standin/faults", body, kind)
    urllib.request.urlopen(request, timeout=30).close()


def job_over(standin: Standin, folder: Path) -> dict[str, Any]:
    """Return a job of eight batches whose rows come four at a time."""
    return {
        "name": "pool",
        "model": {"tokenizer": str(STANDIN_MODEL)},
        "prompts": {"sources": [str(write_prompts(folder / "p.jsonl", RECORDS, first=100))]},
        "servers": {"urls": [standin.url]},
        "sampling": {"max_new_tokens": 256},
        "policy": {"accepted_floor": 0.5},
        "batch": {
            "rows": BATCH,
            "in_flight": 4,
            "journal_dir": str(folder / "journals"),
            "lease_seconds": 20,
        },
        "store": {"uri": str(folder / "out")},
    }


def receipts(folder: Path) -> int:
    """Return how many batches are committed."""
    return len(list((folder / "out").rglob("receipts/*.json")))


def journals_begun(folder: Path) -> bool:
    """Whether the journals of two batches of different ranges hold rows."""
    journals = (folder / "journals").rglob("*.journal")
    begun = {int(path.parent.name) // 2 for path in journals if path.stat().st_size > 1000}
    return len(begun) > 1


@contextmanager
def a_worker(folder: Path, env: dict[str, str]) -> Iterator[psutil.Popen]:
    """Register the deployments, and run a worker with room for all of them until the end of the body."""
    register(env)
    with started([*SERVE, "--name", "one"], folder, env) as worker:
        wait_for("ready deployment", lambda: ready(env["PREFECT_API_URL"], "generate-range"))
        yield worker


def start_run(api: str, job: dict[str, Any]) -> str:
    """Start generate-dataset over two workers, as its form does; return the id of the run."""
    deployment = ask(api, "deployments/name/generate-dataset/generate-dataset")["id"]
    body = {"parameters": {"job": job, "workers": 2}}
    return str(ask(api, f"deployments/{deployment}/create_flow_run", body)["id"])


def ended(api: str, run: str, *types: str) -> dict[str, Any]:
    """Return the state with which a run ended: any final one, or one of these types."""

    def look() -> dict[str, Any] | None:
        state: dict[str, Any] = patiently(api, f"flow_runs/{run}")["state"]
        return state if state["type"] in (types or FINAL) else None

    return wait_for(f"the end of the run {types}", look)


def ranges(api: str) -> list[dict[str, Any]]:
    """Return the flow runs over ranges."""
    return [run for run in runs_of(api, "pool") if "start" in run["parameters"]]


def test_a_cancelled_run_stops_its_ranges_and_a_later_one_resumes(
    tmp_path: Path, postgres_api: str, slow: Standin
) -> None:
    """Cancel of the parent: no flow run or process goes on, no lease is held; then the rest is made."""
    folder, job = tmp_path / "machine", job_over(slow, tmp_path)
    env = machine(folder, postgres_api)
    with a_worker(folder, env) as worker:
        run = start_run(postgres_api, job)
        wait_for("rows of two ranges", lambda: journals_begun(tmp_path) or None)
        switch(slow, hang=True)  # so that no batch ends by itself from here on
        at_work = [each["id"] for each in ranges(postgres_api) if each["state"]["type"] not in FINAL]
        assert at_work
        cancelling = {"state": {"type": "CANCELLING", "name": "Cancelling"}}
        ask(postgres_api, f"flow_runs/{run}/set_state", cancelling)
        ended(postgres_api, run, "CANCELLED")  # Crashed for a moment before: how Prefect notes a SIGTERM
        for each in at_work:
            ended(postgres_api, each, "CANCELLED")
        assert {each["state"]["type"] for each in ranges(postgres_api)} <= {"CANCELLED", "COMPLETED"}
        wait_for("no process of a run", lambda: not worker.children() or None)
        committed = receipts(tmp_path)
        assert committed < RECORDS // BATCH
        leases = [json.loads(path.read_bytes()) for path in (tmp_path / "out").rglob("leases/*/*.json")]
        assert leases
        assert all(lease.get("released") for lease in leases)
        assert not list((tmp_path / "out").rglob("workers/*"))
        switch(slow, hang=None, slow_reply=None)
        before = prompts_started(slow.url)
        again = ended(postgres_api, start_run(postgres_api, job))
    assert again["type"] == "COMPLETED", again
    assert f"{committed} of 8 batches were committed before" in again["message"]
    rows = rows_in(opened(tmp_path / "out"))
    assert len(rows) == ROWS
    begun = prompts_started(slow.url)
    assert sum(begun[key] - before[key] for key in rows.values()) < ROWS  # the journals' rows stay


@contextmanager
def at_work(where: str, folder: Path, env: dict[str, str], job: dict[str, Any]) -> Iterator[psutil.Popen]:
    """Have a spread run at work for the length of the body; yield the worker's or the command's process."""
    if where == "pool":
        with a_worker(folder, env) as worker:
            start_run(env["PREFECT_API_URL"], job)
            yield worker
        return
    file = folder / "job.json"
    file.write_text(json.dumps(job))
    with started(["deployments.cli.main", "run", str(file), "--workers", "2"], folder, env) as command:
        yield command


@pytest.mark.parametrize("where", ["pool", "processes"])
def test_prefect_is_away_during_a_spread_run(tmp_path: Path, slow: Standin, where: str) -> None:
    """SIGKILL of the server mid-run: batches go on; when it is back, every run ends Completed and is told."""
    port, home, folder = free_port(), tmp_path / "prefect", tmp_path / "machine"
    home.mkdir()
    api, job = f"http://127.0.0.1:{port}/api", job_over(slow, tmp_path)
    env = machine(folder, api)
    with ExitStack() as stack:
        url = stack.enter_context(running_postgres(free_port()))
        settings = SERVER_SETTINGS | {"PREFECT_SERVER_DATABASE_CONNECTION_URL": url}
        with prefect_server(home, port, **settings) as server:
            process = stack.enter_context(at_work(where, folder, env, job))
            wait_for(
                "two ranges at work",
                lambda: [each for each in ranges(api) if each["state"]["type"] == "RUNNING"][1:] or None,
            )
            wait_for("rows of two ranges", lambda: journals_begun(tmp_path) or None)
            os.killpg(server.pid, signal.SIGKILL)
        before = receipts(tmp_path)
        assert before < RECORDS // BATCH - 2, "the server died too late to show anything"
        wait_for("two more receipts", lambda: receipts(tmp_path) >= before + 2 or None)
        stack.enter_context(prefect_server(home, port, **settings))
        (whole,) = [run for run in runs_of(api, "pool") if "start" not in run["parameters"]]
        state = ended(api, whole["id"])
        assert state["type"] == "COMPLETED", state
        assert {ended(api, each["id"])["type"] for each in ranges(api)} == {"COMPLETED"}
        if where == "processes":
            assert process.wait(WAIT_SECONDS) == 0, (folder / "log").read_text()[-3000:]
    assert len(rows_in(opened(tmp_path / "out"))) == ROWS
