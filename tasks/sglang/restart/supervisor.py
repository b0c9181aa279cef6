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

LOOP: Final = re.compile(r"\b(?:while|until|for\s*\(\()(.*?)\bdone\b", re.DOTALL)
"""A shell's loop that may start again what ended; a `for` over words starts several servers once."""

SEPARATORS: Final = re.compile(r"\$\(|[\s;&|!(){}`]*(?:[;&|!(){}`\n]|\b(?:do|then|else|elif|if|in)\b)+\s*")
"""What stands between the commands of a shell's text, keywords too."""

REDIRECTION: Final = re.compile(r"[\d&]?>{1,2}&?\s*[\w./$\"{}-]+")
"""Where a command's output goes."""

HARMLESS: Final = frozenset(
    (
        "[",
        "[[",
        ":",
        "true",
        "false",
        "test",
        "sleep",
        "wait",
        "kill",
        "pgrep",
        "ps",
        "echo",
        "printf",
        "date",
    )
) | {"pgrep", "curl", "wget", "nc", "grep", "head", "tail", "nvidia-smi", "break", "continue", "exit", "fi"}
"""Commands of a loop that waits: one that makes no others starts no server."""


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
    """Whether a command line is a shell's that may start again what ended: of `-c`, or in its script."""
    if not argv or not SHELLS.fullmatch(os.path.basename(argv[0])):
        return False
    words = iter(argv[1:])
    for word in words:
        if word.startswith(("-", "+")):
            if not word.startswith("--") and "c" in word:
                return starts_again(next((text for text in words if text[:1] not in "-+"), ""))
            if word[1:].endswith(("o", "O")):
                next(words, None)
            continue
        return starts_again((cwd / word).read_text("utf-8", "replace"))
    return False


def starts_again(text: str) -> bool:
    """Whether a shell's text has a loop that may start a server: any but one whose commands only wait."""
    text = REDIRECTION.sub("", re.sub(r"(?m)(^|\s)#.*$", "", text))
    loops = [match[1] for match in LOOP.finditer(text)]
    if len(loops) < len(re.findall(r"\b(?:while|until)\b|\bfor\s*\(\(", text)):
        return True  # one inside another, or a word in a text: not told apart here
    commands = [words.split() for loop in loops for words in SEPARATORS.split(loop)]
    return any(words[0] not in HARMLESS for words in commands if words)


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
