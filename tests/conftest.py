"""What tests share: real servers on free ports, each in its own folder, each ended by whoever started it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deployments.standin.launch import Standin, start_standin
from tests.support.jobs import Ran, Rawseq

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
START_SECONDS = 240.0
RUN_SECONDS = 480


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs ../shared or PostgreSQL unless told to: then it fails when that is missing."""
    absent = {
        marker
        for marker, variable in (("shared", "RAWSEQ_SHARED"), ("postgres", "RAWSEQ_POSTGRES"))
        if not os.environ.get(variable)
    }
    left_out = [item for item in items if absent & {marker.name for marker in item.iter_markers()}]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def free_port() -> int:
    """Return a loopback port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_url(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when `url` answers; fail with the end of the log when the process dies or time runs out."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)  # polling a server that starts, not synchronising with it
    raise AssertionError(f"{url} did not answer:\n{log.read_text()[-3000:]}")


@contextmanager
def prefect_server(home: Path, port: int, **settings: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a real Prefect server over a folder; `settings` are further variables of its environment."""
    api = f"http://127.0.0.1:{port}/api"
    env = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    env |= {"PREFECT_HOME": str(home), "PREFECT_API_URL": api, "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    env |= settings
    log = home / "server.log"
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with log.open("ab") as sink:
        process = subprocess.Popen(command, env=env, stdout=sink, stderr=sink, start_new_session=True)
    try:
        wait_for_url(f"{api}/health", process, log)
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture(scope="session")
def prefect_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Prefect server with its own home and SQLite file; yields its API URL."""
    port = free_port()
    with prefect_server(tmp_path_factory.mktemp("prefect"), port):
        yield f"http://127.0.0.1:{port}/api"


@pytest.fixture(scope="session")
def rawseq_env(prefect_api: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment of a `rawseq` command in tests: the session's Prefect server, no AWS or proxy settings."""
    env = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("AWS_", "PREFECT_")) and "proxy" not in k.lower()
    }
    return env | {
        "PREFECT_HOME": str(tmp_path_factory.mktemp("home")),
        "PREFECT_API_URL": prefect_api,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PYTHONUNBUFFERED": "1",
        "COLUMNS": "140",
    }


@pytest.fixture
def rawseq(rawseq_env: dict[str, str], tmp_path: Path) -> Rawseq:
    """Run `rawseq ARGUMENTS` in the test's folder with `--json` and return what it left."""

    def run(*arguments: str, env: dict[str, str] | None = None) -> Ran:
        done = subprocess.run(
            [sys.executable, "-m", "deployments.cli.main", *arguments, "--json"],
            cwd=tmp_path,
            env=rawseq_env | (env or {}),
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        return Ran(done.returncode, lines, done.stderr)

    return run


@pytest.fixture
def standin(tmp_path: Path) -> Iterator[Standin]:
    """A stand-in of this test's own, without a parser, whose rows are the same however they are batched."""
    server = start_standin(["--enable-deterministic-inference"], tmp_path / "standin.log")
    yield server
    server.end()
