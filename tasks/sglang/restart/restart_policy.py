"""A server with its parser on: stop with the evidence, or restart it as the job allows."""

import asyncio
import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Collection
from contextlib import nullcontext, suppress
from pathlib import Path
from urllib.parse import urlsplit

from tasks.errors import ServerError, SurroundingsError, UnfaithfulError
from tasks.job.redaction import redact, secrets_of, shown_command
from tasks.job.spec import ServersSpec
from tasks.sglang.client import ServerClient
from tasks.sglang.clock import loop_seconds
from tasks.sglang.gates import REASONING_PARSER, TOOL_CALL_PARSER, unwanted
from tasks.sglang.info import ServerInfo
from tasks.sglang.outcomes import AttemptError
from tasks.sglang.probe import probe_server
from tasks.sglang.restart.idle import wait_idle
from tasks.sglang.restart.listener import port_of
from tasks.sglang.restart.lock import restart_lock
from tasks.sglang.restart.preflight import LOG_FLAGS, LOG_MODE
from tasks.sglang.restart.process import command_without, place_of
from tasks.sglang.restart.restart import Restarted, restart_locally
from tasks.sglang.settings import Check, FleetSettings, Say, unchecked


async def turn_parser_off(
    client: ServerClient, settings: FleetSettings, info: ServerInfo, say: Say
) -> Restarted | None:
    """Restart a server without what the job forbids, by the job's means; None when another run already did.

    Raises:
        UnfaithfulError: the job allows no restart; carries what the probe shows and the arguments to use.
        SurroundingsError: it cannot be restarted, or does not come back.
        LaterError: another run took the lock over before anything was done.
    """
    spec = settings.servers
    if spec.restart == "none":
        raise UnfaithfulError(await _evidence(client, settings, info))
    lock = settings.lock(place_of(client.url)) if settings.lock else nullcontext(unchecked)
    async with lock as still_ours:
        if spec.restart == "command":
            return await _by_command(client, settings, info, still_ours, say)
        return await restart_locally(client, spec, log_dir=settings.log_dir, still_ours=still_ours, say=say)


async def _evidence(client: ServerClient, settings: FleetSettings, info: ServerInfo) -> str:
    try:
        shown = "\n".join((await probe_server(client, settings.plan, info)).lines())
    except (ServerError, SurroundingsError) as error:
        shown = f"  (the probe got no answer: {error})"
    flags = unwanted(info, settings.servers)
    values = {REASONING_PARSER: info.reasoning_parser, TOOL_CALL_PARSER: info.tool_call_parser}
    on = ", ".join(f"{flag} {values.get(flag) or ''}".rstrip() for flag in flags)
    return (
        f"{client.url}: {on} is on, the job forbids it. What it does:\n"
        f"{shown}\nStart the server without it (or, on this host, set servers.restart: local). Arguments:\n"
        f"  {command_without(info.launch_command, flags) or 'those of now, without ' + on}"
    )


async def _by_command(
    client: ServerClient, settings: FleetSettings, info: ServerInfo, still_ours: Check, say: Say
) -> Restarted | None:
    spec, begun = settings.servers, loop_seconds()
    limit = spec.ready_timeout_seconds
    async with restart_lock(client.url, limit):
        flags = unwanted(await client.info(), spec)
        if not flags:
            return None
        await wait_idle(client, spec.drain_timeout_seconds, busy_too=spec.restart_busy)
        await still_ours()
        done = []
        for name in ("restart", "stop", "start"):
            if template := spec.restart_commands.get(name):
                done.append(await _run(client.url, template, limit, settings.log_dir, say))
        await _until_parser_off(client, spec)
    before = f"{info.launch_command or client.url}"
    return Restarted(client.url, before, "; ".join(done), loop_seconds() - begun, flags)


async def _run(url: str, template: str, timeout_seconds: float, log_dir: Path | None, say: Say) -> str:
    """Run one of the user's commands, without a shell; return it as it was run.

    Its own end counts: a server that it leaves in the background keeps its output open, hence the file.
    """
    parts = urlsplit(url)
    try:
        words = [w.format(url=url, host=parts.hostname, port=port_of(url)) for w in shlex.split(template)]
    except (KeyError, IndexError, ValueError) as error:
        raise SurroundingsError(f"servers.restart_commands: {redact(template)!r}: {error!r}") from error
    command, secrets = shown_command(words), secrets_of(words)
    say(f"{url}: running {command}")
    log = (log_dir or Path(tempfile.gettempdir())) / f"rawseq-commands-{place_of(url)[:200]}.log"
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(log, LOG_FLAGS, LOG_MODE), "ab") as out:
            os.fchmod(out.fileno(), LOG_MODE)
            begun = out.tell()
            process = await asyncio.create_subprocess_exec(
                *words,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise SurroundingsError(f"{url}: cannot run {command}: {redact(str(error), secrets)}") from error
    try:
        async with asyncio.timeout(timeout_seconds):
            status = await process.wait()
    except TimeoutError:
        await _end_group(process)
        limit = f"{timeout_seconds:.0f} s"
        raise SurroundingsError(
            f"{url}: {command} did not end within {limit}:\n{_told(log, begun, secrets)}"
        ) from None
    if status != 0:
        raise SurroundingsError(f"{url}: {command} ended with status {status}:\n{_told(log, begun, secrets)}")
    return command


async def _end_group(process: asyncio.subprocess.Process) -> None:
    """End a command with all that it started and that is still in its process group."""
    if process.returncode is None:  # else its number may be another's by now
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def _told(log: Path, begun: int, secrets: Collection[str]) -> str:
    """Return the end of what a command wrote into a log from a place on, redacted before it is cut."""
    with log.open("rb") as file:
        file.seek(max(begun, log.stat().st_size - 65536))
        return redact(file.read(65536).decode("utf-8", "replace"), secrets)[-2000:]


async def _until_parser_off(client: ServerClient, spec: ServersSpec) -> None:
    """Wait until the server is ready without what is forbidden; the old one may still answer at first."""
    limit = spec.ready_timeout_seconds
    deadline, seen = loop_seconds() + limit, ""
    while loop_seconds() < deadline:
        state, seen = await client.health(timeout_seconds=25.0)
        if state == "ready":
            try:
                flags = unwanted(await client.info(), spec)
            except AttemptError as error:
                seen = str(error)
            else:
                if not flags:
                    return
                seen = f"{', '.join(flags)} is on"
        await asyncio.sleep(0.5)
    raise SurroundingsError(f"{client.url}: not ready as wanted {limit:.0f} s after the commands ({seen})")
