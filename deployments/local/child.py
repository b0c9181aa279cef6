"""Prefect's server and worker as child processes of the local stack."""

import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs

from tasks.errors import SurroundingsError

END_SECONDS = 15.0
READY_SECONDS = 180.0
"""A Prefect server starts in 8 s; a busy machine, or a database to be upgraded, gets time."""
POLL_SECONDS = 0.1
LOG_CHARACTERS = 2000


@attrs.frozen(slots=True)
class Child:
    """One process of the stack, in a session of its own: Ctrl-C is for us, we end it in order.

    Args:
        name: for people.
        process: the process.
        log: file with its output.
    """

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def ended(self) -> bool:
        """Whether it ended by itself."""
        return self.process.poll() is not None

    def last_words(self) -> str:
        """Return the end of its log."""
        return self.log.read_text(errors="replace")[-LOG_CHARACTERS:]

    def end(self) -> None:
        """SIGTERM, then SIGKILL; returns when it is gone."""
        if not self.ended:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(END_SECONDS)
        if not self.ended:
            self.process.kill()
        self.process.wait()


@contextmanager
def running(name: str, arguments: list[str], folder: Path, env: Mapping[str, str]) -> Iterator[Child]:
    """Run `python -m ARGUMENTS` for the length of the body, its output in `<folder>/<name>.log`."""
    log = folder / f"{name}.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=folder,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
    child = Child(name, process, log)
    try:
        yield child
    finally:
        child.end()


def wait_until(child: Child, ready: Callable[[], bool]) -> None:
    """Return when `ready` says so.

    Raises:
        SurroundingsError: the process ended, or time ran out; ends with its log.
    """
    deadline = time.monotonic() + READY_SECONDS
    while not ready():
        if child.ended or time.monotonic() > deadline:
            state = f"exit status {child.process.poll()}" if child.ended else "no answer"
            raise SurroundingsError(
                f"{child.name}: expected ready within {READY_SECONDS:.0f} s, got {state}; "
                f"{child.log} ends:\n{child.last_words()}"
            )
        time.sleep(POLL_SECONDS)


def answers(url: str) -> bool:
    """Whether a GET of `url` on this machine gives 200."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=5.0) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False
