"""Start a stand-in on a free port of the loopback interface, wait until it serves, end it.

async with running_standin(["--reasoning-parser", "kimi_k2"], log_path) as url: ...
with running_standin_sync([], log_path) as url: ...
standin = start_standin([], log_path); ...; standin.end()
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

READY_SECONDS = 60.0  # the bundled model loads in about a second; a busy machine gets time
POLL_SECONDS = 0.05
LOG_LINES = 20  # shown when a start fails
ROOT = Path(__file__).resolve().parents[2]  # where `-m deployments.standin` is found


class StandinError(Exception):
    """The stand-in did not come to serve: what was waited for, and the last lines of its log."""


@dataclass(frozen=True, slots=True)
class Standin:
    """A stand-in that serves, in a session of its own; whoever started it ends it."""

    url: str
    process: subprocess.Popen[bytes]
    log_path: Path

    @property
    def pid(self) -> int:
        """Process id, also the id of its process group."""
        return self.process.pid

    def end(self, grace_seconds: float = 3.0) -> None:
        """SIGTERM, SIGKILL to the whole group after `grace_seconds`; returns when the process is gone."""
        if self.process.poll() is None:
            _signal(self.process, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(grace_seconds)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to the whole group; returns when the process is gone."""
        if self.process.poll() is None:
            _signal(self.process, signal.SIGKILL)
        self.process.wait()


def start_standin(
    argv: Sequence[str],
    log_path: Path,
    *,
    port: int | None = None,
    env: Mapping[str, str] | None = None,
    ready_seconds: float = READY_SECONDS,
) -> Standin:
    """Start `python -m deployments.standin ARGV` and wait until it serves.

    Args:
        argv: flags besides --host and --port.
        log_path: file that receives its output (appended).
        port: TCP port; a free one if None.
        env: variables to add to this process's own.
        ready_seconds: longest wait.

    Raises:
        StandinError: it ended, or was not ready in time.
    """
    standin = spawn_standin(argv, log_path, port=port, env=env)
    try:
        _wait_ready(standin, ready_seconds)
    except BaseException:
        standin.kill()
        raise
    return standin


def spawn_standin(
    argv: Sequence[str], log_path: Path, *, port: int | None = None, env: Mapping[str, str] | None = None
) -> Standin:
    """As `start_standin`, without the wait."""
    port = free_port() if port is None else port
    command = [sys.executable, "-m", "deployments.standin", "--host", "127.0.0.1", "--port", str(port), *argv]
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    return Standin(f"http://127.0.0.1:{port}", process, log_path)


@contextmanager
def running_standin_sync(
    argv: Sequence[str], log_path: Path, env: Mapping[str, str] | None = None
) -> Iterator[str]:
    """The base URL of a stand-in that lives as long as the block."""
    standin = start_standin(argv, log_path, env=env)
    try:
        yield standin.url
    finally:
        standin.end()


@asynccontextmanager
async def running_standin(
    argv: Sequence[str], log_path: Path, env: Mapping[str, str] | None = None
) -> AsyncIterator[str]:
    """The base URL of a stand-in that lives as long as the block."""
    standin = await asyncio.to_thread(start_standin, argv, log_path, env=env)
    try:
        yield standin.url
    finally:
        await asyncio.to_thread(standin.end)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nothing listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _wait_ready(standin: Standin, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not _answers(f"{standin.url}/ready"):
        status = standin.process.poll()
        if status is not None:
            raise StandinError(
                f"stand-in ended with status {status} before it served\n{_last_lines(standin.log_path)}"
            )
        if time.monotonic() > deadline:
            raise StandinError(
                f"{standin.url}: not ready after {seconds:g} s\n{_last_lines(standin.log_path)}"
            )
        time.sleep(POLL_SECONDS)


def _answers(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2.0) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _last_lines(path: Path) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-LOG_LINES:])


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
