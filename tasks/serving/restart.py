"""Stop one local server and start it again: drain, force, wait until nothing is left, start, wait."""

import asyncio
import fcntl
import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import attrs

from tasks.errors import ServerError, SurroundingsError, UnfaithfulError
from tasks.serving.client import ServerClient
from tasks.serving.info import redact
from tasks.serving.process import ServerProcess, find_server, without_flags
from tasks.serving.settings import Say, say_nothing
from tasks.serving.stop import stop_server

LOG_LINES: Final = 20
"""Last lines of a server's log that get into an error."""


@attrs.frozen(slots=True)
class Restarted:
    """What a restart did.

    Args:
        url: the server.
        before: the command line that was stopped, redacted.
        now: the command line that was started, redacted.
        seconds: from the first signal until the server was ready.
        pid: the new process; None when a command of the user's started it.
        log: file with the new process's output; None when a command of the user's started it.
    """

    url: str
    before: str
    now: str
    seconds: float
    pid: int | None = None
    log: Path | None = None

    def lines(self) -> list[str]:
        """Return the restart as plain lines for a person."""
        process = [] if self.pid is None else [f"  process {self.pid}, log {self.log}"]
        return [
            f"{self.url}: restarted without --reasoning-parser in {self.seconds:.0f} s",
            f"  before  {self.before}",
            f"  now     {self.now}",
            *process,
        ]


async def restart_without_parser(
    client: ServerClient,
    *,
    drain_seconds: float,
    ready_seconds: float,
    log_dir: Path | None = None,
    busy_too: bool = False,
    say: Say = say_nothing,
) -> Restarted | None:
    """Restart the local server behind a client without `--reasoning-parser`; None when another run did.

    A server that has work in flight gets `drain_seconds` to finish it, and is left alone when it does not,
    unless `busy_too`.

    Raises:
        SurroundingsError: it is not ours to restart, is busy, does not stop, or does not come back.
        UnfaithfulError: the parser does not come from its command line.
    """
    async with restart_lock(client.url, ready_seconds):
        if (await client.info()).reasoning_parser is None:
            return None
        server = find_server(client.url)
        argv = without_flags(server.argv)
        if argv == server.argv:
            raise UnfaithfulError(
                f"{client.url}: a reasoning parser is on, but its command line has no --reasoning-parser "
                f"(a --config file?): {server.command}"
            )
        await wait_idle(client, drain_seconds, busy_too=busy_too)
        say(f"{client.url}: stopping process {server.pid}: {server.command}")
        begun = time.monotonic()
        await stop_server(server, drain_seconds)
        say(f"{client.url}: starting {redact(shlex.join(argv))}")
        return await _start_and_wait(client, server, argv, begun, ready_seconds, log_dir)


async def _start_and_wait(
    client: ServerClient,
    server: ServerProcess,
    argv: tuple[str, ...],
    begun: float,
    ready_seconds: float,
    log_dir: Path | None,
) -> Restarted:
    log = (log_dir or Path(tempfile.gettempdir())) / f"rawseq-server-{server.port}.log"
    child = start_server(server, argv, log)
    deadline = time.monotonic() + ready_seconds
    seen = "nothing"
    while time.monotonic() < deadline:
        if child.poll() is not None:
            raise SurroundingsError(
                f"{server.url}: the restarted server ended with status {child.returncode}:\n"
                f"{log_tail(log, argv)}"
            )
        state, seen = await client.health(timeout_seconds=min(30.0, ready_seconds))
        if state == "ready":
            child.returncode = 0  # it outlives us on purpose: Popen must not warn that it still runs
            seconds = time.monotonic() - begun
            now = redact(shlex.join(argv))
            return Restarted(server.url, server.command, now, seconds, child.pid, log)
        await asyncio.sleep(0.25)
    raise SurroundingsError(
        f"{server.url}: the restarted server was not ready after {ready_seconds:.0f} s (last: {seen}):\n"
        f"{log_tail(log, argv)}"
    )


async def wait_idle(client: ServerClient, seconds: float, *, busy_too: bool = False) -> None:
    """Wait until a server has nothing in flight.

    Raises:
        SurroundingsError: it still works for somebody after `seconds`, and not `busy_too`.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            loads = await client.loads()
        except ServerError:
            return
        if loads is None or loads.running + loads.waiting == 0:
            return
        if time.monotonic() >= deadline:
            if busy_too:
                return
            raise SurroundingsError(
                f"{client.url}: it serves others ({loads.running} running, {loads.waiting} waiting) "
                f"after {seconds:.0f} s: not restarted under them"
            )
        await asyncio.sleep(0.5)


def start_server(server: ServerProcess, argv: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a server in a session of its own, with its former environment and cwd, logging to a file.

    Raises:
        SurroundingsError: the command cannot be started.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with log.open("ab") as out:
            return subprocess.Popen(
                list(argv),
                cwd=server.cwd,
                env=server.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise SurroundingsError(f"{server.url}: cannot start {redact(shlex.join(argv))}: {error}") from error


def log_tail(log: Path, argv: Sequence[str]) -> str:
    """Return the last lines of a server's log without the secrets of its command line."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 65536))
            lines = file.read().decode("utf-8", "replace").splitlines()[-LOG_LINES:]
    except OSError as error:
        return f"(no log: {error})"
    text = "\n".join(line[:300] for line in lines)
    for flag, value in zip(argv, [*argv[1:], ""], strict=True):
        if flag in ("--api-key", "--admin-api-key") and value:
            text = text.replace(value, "***")
    return redact(text)


@asynccontextmanager
async def restart_lock(url: str, seconds: float) -> AsyncIterator[None]:
    """Hold this host's lock for one server; the kernel drops it when its holder dies."""
    name = "".join(c if c.isalnum() else "-" for c in url.partition("://")[2])
    path = Path(tempfile.gettempdir()) / f"rawseq-restart-{os.getuid()}-{name}.lock"
    deadline = time.monotonic() + seconds
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise SurroundingsError(
                        f"{url}: another run is restarting it for {seconds:.0f} s"
                    ) from None
                await asyncio.sleep(0.2)
        yield
