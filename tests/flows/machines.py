"""Machines that share nothing but the store and the Prefect server's API: folders, commands, power cuts.

Not a test module.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import psutil

from tests.conftest import ROOT
from tests.flows.prefect_reads import ask

POLL_SECONDS = 0.1
WAIT_SECONDS = 600.0

REGISTER = ["-m", "deployments.register"]
SERVE = ["prefect", "worker", "start", "--pool", "rawseq", "--type", "process"]

T = TypeVar("T")


def machine(folder: Path, api: str) -> dict[str, str]:
    """Return the environment of one machine: folders of its own, the API's address."""
    for name in ("home", "state", "tmp", "prefect"):
        (folder / name).mkdir(parents=True)
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder / "home"),
        "XDG_STATE_HOME": str(folder / "state"),
        "TMPDIR": str(folder / "tmp"),
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_API_URL": api,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PYTHONUNBUFFERED": "1",
        "COLUMNS": "140",
    }


@contextmanager
def started(command: list[str], folder: Path, env: Mapping[str, str]) -> Iterator[psutil.Popen]:
    """Run a command on one machine; end it and all that it has started."""
    with (folder / "log").open("ab") as log:
        process = psutil.Popen(
            [sys.executable, "-m", *command],
            cwd=folder,
            env=env,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        kill(process)


def kill(process: psutil.Process) -> None:
    """SIGKILL a process and its descendants, as when their machine loses power."""
    try:
        family = [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        return
    for each in family:
        try:
            each.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(family, 10)


def wait_for(what: str, look: Callable[[], T | None]) -> T:
    """Return what a look finds; polls processes that no event of ours can tell about."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        found = look()
        if found is not None:
            return found
        time.sleep(POLL_SECONDS)
    raise AssertionError(f"waited {WAIT_SECONDS:.0f} s for {what}")


def register(env: Mapping[str, str]) -> None:
    """Register the deployments, as a person does once."""
    subprocess.run([sys.executable, *REGISTER], env=env, check=True, timeout=600)


def ready(api: str, name: str) -> bool | None:
    """Return True when a worker serves a deployment, else None."""
    found = ask(api, "deployments/filter", {"deployments": {"name": {"any_": [name]}}})
    return True if found and found[0]["status"] == "READY" else None
