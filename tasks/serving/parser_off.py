"""A server with its parser on: stop with the evidence, or restart it as the job allows."""

import asyncio
import shlex
import subprocess
import time
from contextlib import nullcontext
from urllib.parse import urlsplit

from tasks.errors import ServerError, SurroundingsError, UnfaithfulError
from tasks.serving.client import ServerClient
from tasks.serving.info import ServerInfo
from tasks.serving.judge import ProbePlan
from tasks.serving.outcomes import AttemptError
from tasks.serving.probe import probe_server
from tasks.serving.process import command_without_parser, port_of
from tasks.serving.restart import Restarted, restart_lock, restart_without_parser, wait_idle
from tasks.serving.settings import FleetSettings, Say


async def turn_parser_off(
    client: ServerClient, settings: FleetSettings, info: ServerInfo, say: Say
) -> Restarted | None:
    """Restart a server without its parser by the job's means; None when another run already did.

    Raises:
        UnfaithfulError: the job allows no restart; carries what the probe shows and the arguments to use.
        SurroundingsError: it cannot be restarted, or does not come back.
    """
    spec = settings.servers
    if spec.restart == "none":
        raise UnfaithfulError(await _evidence(client, settings.plan, info))
    async with settings.lock(client.url) if settings.lock else nullcontext():
        if spec.restart == "command":
            return await _by_command(client, settings, info, say)
        return await restart_without_parser(
            client,
            drain_seconds=spec.drain_timeout_seconds,
            ready_seconds=spec.ready_timeout_seconds,
            log_dir=settings.log_dir,
            busy_too=spec.restart_busy,
            say=say,
        )


async def _evidence(client: ServerClient, plan: ProbePlan, info: ServerInfo) -> str:
    try:
        shown = "\n".join((await probe_server(client, plan, info)).lines())
    except ServerError as error:
        shown = f"  (the probe got no answer: {error})"
    command = command_without_parser(info.launch_command)
    return (
        f"{client.url}: --reasoning-parser {info.reasoning_parser} is on, the job forbids it. What it does:\n"
        f"{shown}\nStart the server without it (or, on this host, set servers.restart: local). Arguments:\n"
        f"  {command or 'those of now, without --reasoning-parser'}"
    )


async def _by_command(
    client: ServerClient, settings: FleetSettings, info: ServerInfo, say: Say
) -> Restarted | None:
    spec, begun = settings.servers, time.monotonic()
    async with restart_lock(client.url, spec.ready_timeout_seconds):
        if (await client.info()).reasoning_parser is None:
            return None
        await wait_idle(client, spec.drain_timeout_seconds, busy_too=spec.restart_busy)
        done = []
        for name in ("restart", "stop", "start"):
            if template := spec.restart_commands.get(name):
                done.append(await _run(client.url, template, spec.ready_timeout_seconds, say))
        await _until_parser_off(client, spec.ready_timeout_seconds)
    before = f"{info.launch_command or client.url}"
    return Restarted(client.url, before, "; ".join(done), time.monotonic() - begun)


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


async def _until_parser_off(client: ServerClient, timeout_seconds: float) -> None:
    """Wait until the server is ready without its parser; the old one may still answer at first."""
    deadline = time.monotonic() + timeout_seconds
    seen = ""
    while time.monotonic() < deadline:
        state, seen = await client.health(timeout_seconds=25.0)
        if state == "ready":
            try:
                parser = (await client.info()).reasoning_parser
            except AttemptError as error:
                seen = str(error)
            else:
                if parser is None:
                    return
                seen = f"the parser {parser} is on"
        await asyncio.sleep(0.5)
    raise SurroundingsError(
        f"{client.url}: not ready without its parser {timeout_seconds:.0f} s after the commands ({seen})"
    )
