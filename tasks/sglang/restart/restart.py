"""Stop one local server and start it again: drain, force, wait until nothing is left, start, wait."""

import asyncio
import subprocess
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

import attrs
import psutil

from tasks.errors import SurroundingsError, UnfaithfulError
from tasks.job.redaction import redact, shown_command
from tasks.job.spec import ServersSpec
from tasks.sglang.client import ServerClient
from tasks.sglang.clock import loop_seconds
from tasks.sglang.gates import unwanted
from tasks.sglang.info import ServerInfo
from tasks.sglang.restart.conditions import conditions_of, not_kept
from tasks.sglang.restart.idle import wait_idle
from tasks.sglang.restart.lock import restart_lock
from tasks.sglang.restart.preflight import check_start, check_successor, open_log
from tasks.sglang.restart.process import ServerProcess, find_server, without_flags
from tasks.sglang.restart.start import start_server
from tasks.sglang.restart.stop import is_gone, stop_server
from tasks.sglang.restart.undo import undo_command, write_undo
from tasks.sglang.settings import Check, Say, say_nothing, unchecked

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
        flags: what it runs without now.
        process: the new process; None when a command of the user's started it.
        log: file with the new process's output; None when a command of the user's started it.
        undo: script that undoes it; None when nothing was changed, or by a command of the user's.
        lost: what the new process runs under otherwise, a phrase each.
    """

    url: str
    before: str
    now: str
    seconds: float
    flags: tuple[str, ...]
    process: ServerProcess | None = None
    log: Path | None = None
    undo: Path | None = None
    lost: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return the restart as plain lines for a person."""
        process = [] if self.process is None else [f"  process {self.process.pid}, log {self.log}"]
        return [
            f"{self.url}: restarted without {', '.join(self.flags)} in {self.seconds:.0f} s",
            f"  before  {self.before}",
            f"  now     {self.now}",
            *process,
            *(f"  other   {phrase}" for phrase in self.lost),
            *([] if self.undo is None else [f"  undo    {undo_command(self.undo)}"]),
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
        check_successor(server, argv, _log_of(server, log_dir))
        await wait_idle(client, spec.drain_timeout_seconds, busy_too=spec.restart_busy)
        await still_ours()
        return attrs.evolve(await _replace(client, server, argv, spec, log_dir, say), flags=flags)


async def _replace(
    client: ServerClient,
    server: ServerProcess,
    argv: tuple[str, ...],
    spec: ServersSpec,
    log_dir: Path | None,
    say: Say,
) -> Restarted:
    """Stop a server and start it with another command line; where that fails, with its own again."""
    drain, started = spec.drain_timeout_seconds, None
    undo = write_undo(server, argv, drain, _log_of(server, log_dir))
    say(f"{client.url}: stopping process {server.pid}: {server.command}; undo: {undo_command(undo)}")
    try:
        started = await stop_and_start(server, argv, drain, log_dir)
        say(f"{client.url}: started {shown_command(argv)}")
        done = await wait_started(client, started, spec.ready_timeout_seconds)
    except SurroundingsError as error:
        told = await _start_former(client, server, started, spec, log_dir, undo)
        raise SurroundingsError(f"{error}\n{told}") from error
    return attrs.evolve(done, undo=undo)


async def _start_former(
    client: ServerClient,
    server: ServerProcess,
    started: "Started | None",
    spec: ServersSpec,
    log_dir: Path | None,
    undo: Path,
) -> str:
    """End what came in a server's place and start its own command line again; return what became of it."""
    try:
        if started is not None:
            await stop_server(started.process, spec.drain_timeout_seconds)
        if not is_gone(server):
            return f"{server.url}: process {server.pid} was not stopped; nothing was started in its place"
        again = await stop_and_start(server, server.argv, 0.0, log_dir)
        done = await wait_started(client, again, spec.ready_timeout_seconds)
    except SurroundingsError as error:
        return f"its former command line could not be started again: {error}\nTry {undo_command(undo)}"
    assert done.process is not None
    undo.unlink(missing_ok=True)  # there is nothing to undo, and it holds secrets
    return (
        f"its former command line was started again: process {done.process.pid}, log {done.log}: "
        f"{done.process.command}"
    )


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


@attrs.frozen(slots=True, eq=False)
class Started:
    """A server that was started and is not ready yet.

    Args:
        before: the process that it replaces.
        argv: its command line.
        child: its process.
        log: where it logs.
        begun: when the former one was told to stop, monotonic seconds.
    """

    before: ServerProcess
    argv: tuple[str, ...]
    child: subprocess.Popen[bytes]
    log: Path
    begun: float

    @property
    def process(self) -> ServerProcess:
        """It as a server process; one that has ended is known by its number alone, as leader of its group."""
        try:
            created = psutil.Process(self.child.pid).create_time()
        except psutil.NoSuchProcess:
            created = 0.0
        return attrs.evolve(self.before, pid=self.child.pid, created=created, argv=self.argv)


async def stop_and_start(
    server: ServerProcess, argv: tuple[str, ...], drain_seconds: float, log_dir: Path | None
) -> Started:
    """Stop a server and start it with another command line; when cancelled, end only after that.

    A run that is cancelled between the two would leave a server dead that nobody else can start.

    Raises:
        SurroundingsError: it could not be started again, does not stop, or cannot be started.
    """

    async def both() -> Started:
        log, begun = _log_of(server, log_dir), loop_seconds()
        check_start(server, argv)
        with open_log(server, log) as out:  # before the stop: what fails after it leaves the server dead
            await stop_server(server, drain_seconds)
            return Started(server, argv, start_server(server, argv, out), log, begun)

    work = asyncio.ensure_future(both())
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        (await work).child.returncode = 0  # it outlives us, see `wait_started`
        raise


def _log_of(server: ServerProcess, log_dir: Path | None) -> Path:
    return (log_dir or Path(tempfile.gettempdir())) / f"rawseq-server-{server.port}.log"


async def wait_started(client: ServerClient, started: Started, ready_seconds: float) -> Restarted:
    """Wait until a started server is ready.

    Raises:
        SurroundingsError: it ended, or was not ready in time; carries the end of its log.
    """
    server, child = started.before, started.child
    deadline, seen = loop_seconds() + ready_seconds, "nothing"
    while loop_seconds() < deadline:
        if child.poll() is not None:
            raise SurroundingsError(
                f"{server.url}: the restarted server ended with status {child.returncode}:\n"
                f"{log_tail(started.log, server.secrets())}"
            )
        state, seen = await client.health(timeout_seconds=min(30.0, ready_seconds))
        if state == "ready":
            child.returncode = 0  # it outlives us on purpose: Popen must not warn that it still runs
            seconds, now = loop_seconds() - started.begun, started.process
            now = attrs.evolve(now, conditions=conditions_of(now.pid))
            lost = not_kept(server.conditions, now.conditions, started.log)
            return Restarted(
                server.url, server.command, now.command, seconds, (), now, started.log, lost=lost
            )
        await asyncio.sleep(0.25)
    raise SurroundingsError(
        f"{server.url}: the restarted server was not ready after {ready_seconds:.0f} s (last: {seen}):\n"
        f"{log_tail(started.log, server.secrets())}"
    )


def log_tail(log: Path, secrets: Collection[str]) -> str:
    """Return the last lines of a server's log, redacted; `secrets` are the server's own."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 65536))
            lines = file.read().decode("utf-8", "replace").splitlines()[-LOG_LINES:]
    except OSError as error:
        return f"(no log: {error})"
    return "\n".join(line[:300] for line in redact("\n".join(lines), secrets).splitlines())
