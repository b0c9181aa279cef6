"""Stop one local server with everything that belongs to it, and nothing else."""

import asyncio
import os
import signal
from collections.abc import Sequence
from typing import Final

import psutil

from tasks.errors import SurroundingsError
from tasks.sglang.clock import loop_seconds
from tasks.sglang.restart.listener import listeners_of
from tasks.sglang.restart.process import ServerProcess

GONE_SECONDS: Final = 30.0
"""How long killed processes and their port may take to disappear."""


async def stop_server(server: ServerProcess, drain_seconds: float) -> None:
    """Stop a server with its workers: SIGTERM, which lets it finish, then SIGKILL; wait until all are gone.

    Raises:
        SurroundingsError: a process or the port is still there after `GONE_SECONDS`.
    """
    family = _family(server)
    if not family:
        return
    _signal(family[:1], signal.SIGTERM)
    if not await _gone(family, drain_seconds):
        family = [*family, *(p for p in _family(server) if p not in family)]
        _signal(family, signal.SIGKILL)
    if not await _gone(family, GONE_SECONDS):
        left = [p.pid for p in family if _alive(p)]
        raise SurroundingsError(
            f"{server.url}: processes {left} are still there {GONE_SECONDS:.0f} s after SIGKILL"
        )
    deadline = loop_seconds() + GONE_SECONDS
    while taken := listeners_of(server.url):
        if loop_seconds() > deadline:
            raise SurroundingsError(
                f"{server.url}: {taken[0]} is still listening {GONE_SECONDS:.0f} s after the server stopped"
            )
        await asyncio.sleep(0.1)


def _family(server: ServerProcess) -> list[psutil.Process]:
    """Return the server process and all below it; with its process group when it leads one.

    The group of a leader that is gone is still its group: no new process can get that number meanwhile.
    """
    try:
        root = psutil.Process(server.pid)
        if abs(root.create_time() - server.created) > 0.01:
            return []
        family = [root, *root.children(recursive=True)]
        leads = os.getpgid(server.pid) == server.pid
    except (psutil.NoSuchProcess, ProcessLookupError):
        family, leads = [], True
    if leads:
        known = {process.pid for process in family}
        family += [p for p in psutil.process_iter() if p.pid not in known and _group(p.pid) == server.pid]
    return family


def is_gone(server: ServerProcess) -> bool:
    """Whether a server process has ended and nothing listens at its address."""
    try:
        root = psutil.Process(server.pid)
        lives = abs(root.create_time() - server.created) <= 0.01 and _alive(root)
    except psutil.NoSuchProcess:
        lives = False
    return not lives and not listeners_of(server.url)


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except OSError:
        return -1


def _signal(family: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in family:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def _gone(family: Sequence[psutil.Process], seconds: float) -> bool:
    deadline = loop_seconds() + seconds
    while any(_alive(process) for process in family):
        if loop_seconds() > deadline:
            return False
        await asyncio.sleep(0.1)
    return True
