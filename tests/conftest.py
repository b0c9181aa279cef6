"""What tests share: real servers on free ports, each in its own folder, each ended by whoever started it."""

import itertools
import json
import multiprocessing.process
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
from xdist.remote import Producer

from deployments.standin.launch import Standin, start_standin
from tests.support.families import load, loadable, model_folder
from tests.support.forked import Fault, Template
from tests.support.jobs import Ran, Rawseq
from tests.support.scheduling import ByScope, in_order, mark

__all__ = ["load", "model_folder"]

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
START_SECONDS = 240.0
RUN_SECONDS = 480
GATES = (("shared", "RAWSEQ_SHARED"), ("postgres", "RAWSEQ_POSTGRES"), ("restart", "RAWSEQ_RESTART"))
"""Markers of tests that need more than this package, and the variables that turn them on."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs one of `GATES` unless told to: then it fails when that is missing."""
    absent = {marker for marker, variable in GATES if not os.environ.get(variable)}
    for item in items:
        mark(item)
    kept = [item for item in loadable(items) if not absent & {marker.name for marker in item.iter_markers()}]
    config.hook.pytest_deselected(items=[*{*items} - {*kept}])
    items[:] = in_order(kept)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByScope:
    """Tests of one file, or of one model family, stay together."""
    return ByScope(config, log)


@pytest.fixture(autouse=True)
def no_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `make check` nothing starts a process: a test that does carries the marker `process`."""

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("a test that starts a process carries the marker `process`")

    if os.environ.get("RAWSEQ_CHECK"):
        monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
        monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", refuse)
        for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp"):
            monkeypatch.setattr(os, name, refuse)


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


@pytest.fixture(scope="session")
def template(rawseq_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Template]:
    """One template for the session; its commands find the session's Prefect server."""
    with Template(rawseq_env, tmp_path_factory.mktemp("template") / "log") as opened:
        yield opened


@pytest.fixture
def rawseq(template: Template, tmp_path: Path) -> Rawseq:
    """Run `rawseq ARGUMENTS` in the test's folder with `--json` and return what it left."""
    numbers = itertools.count()

    def run(*arguments: str, env: dict[str, str] | None = None, fault: Fault | None = None) -> Ran:
        log = tmp_path / f"rawseq-{next(numbers)}.log"
        out = log.with_suffix(".out")
        pid = template.start(log, *arguments, "--json", out=out, env=env, fault=fault)
        status = template.wait(pid, RUN_SECONDS)
        return Ran(status, [json.loads(line) for line in out.read_text().splitlines()], log.read_text())

    return run


@pytest.fixture
def standin(tmp_path: Path) -> Iterator[Standin]:
    """A stand-in of this test's own, without a parser, whose rows are the same however they are batched."""
    server = start_standin(["--enable-deterministic-inference"], tmp_path / "standin.log")
    yield server
    server.end()
