"""What would start a server again once it is stopped: then two of them would want one port and one GPU.

A systemd unit, a supervisor by its program's name, or a shell in a loop. A terminal, tmux, a script that goes
on after the server, and what started this run as well, start nothing.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psutil

from tasks.errors import SurroundingsError
from tasks.sglang.restart.process import ServerProcess

SHELLS: Final = re.compile(r"-?(ba|da|z|k|a)?sh")
"""Base names of shells on a command line."""

SUPERVISORS: Final = re.compile(r"supervisord|circusd|runsv|s6-supervise|monit|containerd-shim.*|conmon")
"""Programs that start again what ends, by their base names."""

LOOP: Final = re.compile(r"\b(while|until)\b")
"""Words of a shell that may start again what ended; `for` starts several servers once."""


def refuse_supervised(server: ServerProcess) -> None:
    """Refuse a server that something else would start again.

    Raises:
        SurroundingsError: it has a supervisor, or its ancestors cannot be read; carries what to do instead.
    """
    try:
        process = psutil.Process(server.pid)
        supervisor = _unit(process) or _supervisor(process)
    except (psutil.Error, OSError) as error:
        raise SurroundingsError(
            f"{server.url}: what started process {server.pid} cannot be read: {error}; restart it by hand"
        ) from error
    if supervisor:
        found, command = supervisor
        raise SurroundingsError(
            f"{server.url}: expected a server that stays stopped, found process {server.pid} started again "
            f"by {found}. Set servers.restart: command, with what restarts it, e.g.\n"
            f"  restart_commands: {{restart: {command}}}"
        )


def unit_of(groups: str) -> str | None:
    """Return the systemd service of a `/proc/PID/cgroup`; None for a session's or a terminal's scope."""
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "name=systemd") and path.endswith(".service"):
            return path.rpartition("/")[2]
    return None


def loops(argv: Sequence[str], cwd: Path) -> bool:
    """Whether a command line is a shell's that runs a loop: of `-c`, or in the script that it names."""
    if not argv or not SHELLS.fullmatch(os.path.basename(argv[0])):
        return False
    words = iter(argv[1:])
    for word in words:
        if word.startswith(("-", "+")):
            if not word.startswith("--") and "c" in word:
                return LOOP.search(next((text for text in words if text[:1] not in "-+"), "")) is not None
            if word[1:].endswith(("o", "O")):
                next(words, None)
            continue
        return LOOP.search((cwd / word).read_text("utf-8", "replace")) is not None
    return False


def _unit(process: psutil.Process) -> tuple[str, str] | None:
    """Return the unit of a process that systemd itself started, and how it is restarted."""
    parent = process.parent()
    if parent is None or parent.name() != "systemd":
        return None
    groups = Path(f"/proc/{process.pid}/cgroup").read_text()
    unit = unit_of(groups)
    if unit is None or unit == unit_of(Path("/proc/self/cgroup").read_text()):
        return None
    user = "" if parent.pid == 1 else "--user "
    return f"systemd's {unit}", f"systemctl {user}restart {unit}"


def _supervisor(process: psutil.Process) -> tuple[str, str] | None:
    """Return the ancestor that starts a process again, and how that is told to."""
    started_us = {os.getpid(), *(each.pid for each in psutil.Process().parents())}
    for parent in process.parents():
        if parent.pid in started_us:  # it waits for this run as well
            return None
        argv = parent.cmdline()
        name = os.path.basename(argv[0]) if argv else ""
        if SUPERVISORS.fullmatch(name) or SUPERVISORS.fullmatch(parent.name()):
            return f"process {parent.pid} ({parent.name()})", "NAME-OF-ITS-PROGRAM restart NAME"
        if not SHELLS.fullmatch(name):
            return None
        if loops(argv, Path(parent.cwd())):
            return f"process {parent.pid}, a shell in a loop", "/path/to/your/restart-script"
    return None
