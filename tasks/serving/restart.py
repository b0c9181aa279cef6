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
from tasks.serving.gates import unwanted
from tasks.serving.info import ServerInfo, redact
from tasks.serving.process import ServerProcess, find_server, without_flags
from tasks.serving.settings import Check, Say, say_nothing, unchecked
from tasks.serving.stop import stop_server
from tasks.spec import ServersSpec

IDLE_LOOKS: Final = 2
"""So many looks in a row must show no work before a server counts as idle."""

LOG_LINES: Final = 20
"""Last lines of a server's log that get into an error."""


class BusyError(SurroundingsError):
    """A server is left as it is, because it works for others."""


@attrs.frozen(slots=True)
class Restarted:
    """What a restart did.

    Args:
        url: the server.
        before: the command line that was stopped, redacted.
        now: the command line that was started, redacted.
        seconds: from the first signal until the server was ready.
        flags: what it runs without now.
        pid: the new process; None when a command of the user's started it.
        log: file with the new process's output; None when a command of the user's started it.
    """

    url: str
    before: str
    now: str
    seconds: float
    flags: tuple[str, ...]
    pid: int | None = None
    log: Path | None = None

    def lines(self) -> list[str]:
        """Return the restart as plain lines for a person."""
        process = [] if self.pid is None else [f"  process {self.pid}, log {self.log}"]
        return [
            f"{self.url}: restarted without {', '.join(self.flags)} in {self.seconds:.0f} s",
            f"  before  {self.before}",
            f"  now     {self.now}",
            *process,
        ]


async def restart_locally(
    client: ServerClient,
    spec: ServersSpec,
    *,
    log_dir: Path | None = None,
    still_ours: Check = unchecked,
    say: Say = say_nothing,
) -> Restarted | None:
    """Restart the local server behind a client without the flags that `spec` forbids; None when none is on.

    A server that has work in flight gets `drain_timeout_seconds` to finish it, and is left alone when it does
    not, unless `restart_busy`.

    Args:
        client: the open client.
        spec: what is forbidden, and time limits.
        log_dir: where it logs afterwards; None: the system's temporary folder.
        still_ours: asked right before the server is stopped; once it is stopped it is started, come what may.
        say: takes lines for a person.

    Raises:
        SurroundingsError: it is not ours to restart, does not stop, or does not come back.
        BusyError: it works for others.
        UnfaithfulError: a flag does not come from its command line.
    """
    async with restart_lock(client.url, spec.ready_timeout_seconds):
        info = await client.info()
        flags = unwanted(info, spec)
        if not flags:
            return None
        server = find_server(client.url)
        _refuse_many_nodes(info)
        argv = _argv_without(server, flags)
        await wait_idle(client, spec.drain_timeout_seconds, busy_too=spec.restart_busy)
        await still_ours()
        say(f"{client.url}: stopping process {server.pid}: {server.command}")
        begun = time.monotonic()
        await stop_server(server, spec.drain_timeout_seconds)
        say(f"{client.url}: starting {redact(shlex.join(argv))}")
        started = await _start_and_wait(client, server, argv, begun, spec.ready_timeout_seconds, log_dir)
        return attrs.evolve(started, flags=flags)


def _refuse_many_nodes(info: ServerInfo) -> None:
    """Refuse a server of several nodes that its command line does not show, e.g. one with a --config file."""
    nodes = info.flags.get("nnodes")
    if isinstance(nodes, int) and nodes > 1:
        raise SurroundingsError(f"{info.url}: it is one of {nodes} nodes: restart them together, by hand")


def _argv_without(server: ServerProcess, flags: Sequence[str]) -> tuple[str, ...]:
    for flag in flags:
        if without_flags(server.argv, (flag,)) == server.argv:
            raise UnfaithfulError(
                f"{server.url}: {flag} is on, but its command line does not have it "
                f"(a --config file?): {server.command}"
            )
    return without_flags(server.argv, flags)


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
            return Restarted(server.url, server.command, now, seconds, (), child.pid, log)
        await asyncio.sleep(0.25)
    raise SurroundingsError(
        f"{server.url}: the restarted server was not ready after {ready_seconds:.0f} s (last: {seen}):\n"
        f"{log_tail(log, argv)}"
    )


async def wait_idle(client: ServerClient, seconds: float, *, busy_too: bool = False) -> None:
    """Wait until a server has nothing in flight, at two looks in a row: its snapshot may be old.

    Raises:
        BusyError: after `seconds` it still works for somebody or does not say, and not `busy_too`.
    """
    deadline, looks = time.monotonic() + seconds, 0
    while True:
        try:
            loads = await client.loads()
        except ServerError as error:
            looks, seen = 0, f"its load cannot be read: {error}"
        else:
            if loads is None:
                return
            looks = looks + 1 if loads.running + loads.waiting == 0 else 0
            seen = f"it serves others ({loads.running} running, {loads.waiting} waiting)"
        if looks >= IDLE_LOOKS:
            return
        if time.monotonic() >= deadline and not looks:
            if busy_too:
                return
            raise BusyError(f"{client.url}: {seen} after {seconds:.0f} s: not restarted under them")
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
