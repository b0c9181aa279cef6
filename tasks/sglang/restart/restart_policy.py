"""A server with its parser on: stop with the evidence, or restart it as the job allows."""

import asyncio
import shlex
import subprocess
import time
from contextlib import nullcontext
from urllib.parse import urlsplit

from tasks.errors import ServerError, SurroundingsError, UnfaithfulError
from tasks.job.spec import ServersSpec
from tasks.sglang.client import ServerClient
from tasks.sglang.gates import REASONING_PARSER, TOOL_CALL_PARSER, unwanted
from tasks.sglang.info import ServerInfo
from tasks.sglang.outcomes import AttemptError
from tasks.sglang.probe import probe_server
from tasks.sglang.restart.idle import wait_idle
from tasks.sglang.restart.listener import port_of
from tasks.sglang.restart.process import command_without, place_of
from tasks.sglang.restart.restart import Restarted, restart_locally, restart_lock
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
    except ServerError as error:
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
    spec, begun = settings.servers, time.monotonic()
    async with restart_lock(client.url, spec.ready_timeout_seconds):
        flags = unwanted(await client.info(), spec)
        if not flags:
            return None
        await wait_idle(client, spec.drain_timeout_seconds, busy_too=spec.restart_busy)
        await still_ours()
        done = []
        for name in ("restart", "stop", "start"):
            if template := spec.restart_commands.get(name):
                done.append(await _run(client.url, template, spec.ready_timeout_seconds, say))
        await _until_parser_off(client, spec)
    before = f"{info.launch_command or client.url}"
    return Restarted(client.url, before, "; ".join(done), time.monotonic() - begun, flags)


async def _run(url: str, template: str, timeout_seconds: float, say: Say) -> str:
    """Run one of the user's commands, without a shell; return it as it was run."""
    parts = urlsplit(url)
    try:
        words = [w.format(url=url, host=parts.hostname, port=port_of(url)) for w in shlex.split(template)]
    except (KeyError, IndexError, ValueError) as error:
        raise SurroundingsError(f"servers.restart_commands: {template!r}: {error!r}") from error
    command = shlex.join(words)
    say(f"{url}: running {command}")
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except OSError as error:
        raise SurroundingsError(f"{url}: cannot run {command}: {error}") from error
    try:
        async with asyncio.timeout(timeout_seconds):
            told, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise SurroundingsError(f"{url}: {command} did not end within {timeout_seconds:.0f} s") from None
    if process.returncode != 0:
        tail = told.decode("utf-8", "replace")[-2000:]
        raise SurroundingsError(f"{url}: {command} ended with status {process.returncode}:\n{tail}")
    return command


async def _until_parser_off(client: ServerClient, spec: ServersSpec) -> None:
    """Wait until the server is ready without what is forbidden; the old one may still answer at first."""
    limit = spec.ready_timeout_seconds
    deadline, seen = time.monotonic() + limit, ""
    while time.monotonic() < deadline:
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
