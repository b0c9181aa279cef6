"""The local process behind a server URL: find it, describe it, take the parser off its command.

Only a process that listens at the URL's loopback address, belongs to this user and is recognisably SGLang
(or our stand-in) is ever returned; no signal is sent here. Its environment is kept
to start it again and is shown nowhere.
"""

import os
import re
import shlex
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import attrs
import psutil

from tasks.errors import SurroundingsError
from tasks.job.redaction import secret_variables, secrets_in, secrets_of, shown_command
from tasks.sglang.gates import REASONING_PARSER, STRICT_THINKING
from tasks.sglang.restart.conditions import Conditions, conditions_of
from tasks.sglang.restart.listener import is_loopback, pids_of, port_of

SWITCHES: Final = (STRICT_THINKING,)
"""Flags of these that take no value."""

PYTHON: Final = re.compile(r"(python|pypy)[0-9.]*", re.IGNORECASE)
"""Base name of a Python program on a command line."""

SERVER_FILES: Final = re.compile(r"\.?(python|pypy|sglang)", re.IGNORECASE)
"""How the base name of the file that such a program runs from begins: `python3.11`, `.python-wrapped`."""

SERVER_MODULES: Final = ("sglang.launch_server", "deployments.standin")
"""Modules that `python -m` starts a server with."""


@attrs.frozen(slots=True)
class ServerProcess:
    """One local server process, as it was started.

    Args:
        url: its base URL.
        pid: the process that was started by a person, parent of all its workers.
        created: its start time, seconds since the epoch: with `pid` it names the process for good.
        argv: its command line.
        cwd: its working folder.
        env: its environment; never shown.
        conditions: what else it runs under.
    """

    url: str
    pid: int
    created: float
    argv: tuple[str, ...]
    cwd: str
    env: dict[str, str] = attrs.field(repr=False)
    conditions: Conditions = attrs.field(factory=Conditions)

    @property
    def port(self) -> int:
        """TCP port of its URL."""
        return port_of(self.url)

    @property
    def command(self) -> str:
        """Its command line for a person: quoted for a shell, without secrets."""
        return shown_command(self.argv)

    def secrets(self) -> set[str]:
        """Return the secrets of its command line, of its `--config` file and of its environment."""
        found = secrets_of(self.argv) | secret_variables(self.env)
        words = [part for word in self.argv for part in word.split("=", 1)]
        for flag, value in zip(words, [*words[1:], ""], strict=True):
            if flag == "--config":
                with suppress(OSError, ValueError):
                    found |= secrets_in(Path(self.cwd, value).read_text())
        return found


def place_of(url: str) -> str:
    """Return one server's name for all hosts and spellings, a plain word: host and port, and path if any.

    A loopback URL is named by this host, so that equal loopback URLs of two hosts are two servers.
    """
    parts = urlsplit(url)
    host = socket.gethostname() if is_loopback(url) else parts.hostname or ""
    name = f"{host}-{port_of(url)}{parts.path.rstrip('/')}".lower()
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in name)[:255]


def is_server_command(argv: Sequence[str]) -> bool:
    """Whether a command line is Python's or SGLang's own and starts an SGLang server or our stand-in.

    A shell, tmux, `env`, `srun` and the like are none, although theirs may hold a server's word by word.
    """
    program = os.path.basename(argv[0]) if argv else ""
    if program == "sglang":
        return list(argv[1:2]) == ["serve"]
    if not PYTHON.fullmatch(program):
        return False
    module, script, following = _python_runs(argv[1:])
    if os.path.basename(script) == "sglang":
        return following == "serve"
    return module in SERVER_MODULES or script.endswith("sglang/launch_server.py")


def _python_runs(words: Sequence[str]) -> tuple[str, str, str]:
    """Return the module or the script that Python's arguments name, and the first argument of that."""
    rest = iter(words)
    for word in rest:
        if not word.startswith("-") or word == "-":
            return "", word, next(rest, "")
        if word == "--check-hash-based-pycs":
            next(rest, None)
        elif not word.startswith("--") and (taking := re.search("[cmWX]", word)):
            value = word[taking.end() :] or next(rest, "")
            if taking[0] in "cm":
                return value if taking[0] == "m" else "", "", next(rest, "")
    return "", "", ""


def without_flags(argv: Sequence[str], flags: Sequence[str] = (REASONING_PARSER,)) -> tuple[str, ...]:
    """Return a command line without `--flag value`, `--flag=value` and switches, `_` or `-` in the name."""
    kept: list[str] = []
    words = iter(argv)
    for word in words:
        name, equals, _ = word.partition("=")
        plain = name.replace("_", "-")
        if name.startswith("--") and plain in flags:
            if not equals and plain not in SWITCHES:
                next(words, None)
            continue
        kept.append(word)
    return tuple(kept)


def command_without(launch_command: str, flags: Sequence[str] = (REASONING_PARSER,)) -> str:
    """Return a server's own launch command without some flags, for a person to use.

    SGLang reports the command unquoted, so this is a hint, not something to execute.
    """
    try:
        words = shlex.split(launch_command)
    except ValueError:
        words = launch_command.split()
    return shlex.join(without_flags(words, flags))


def find_server(url: str) -> ServerProcess:
    """Return the server process behind a loopback URL.

    Raises:
        SurroundingsError: the URL is not of this host, nothing (of ours) listens there, what listens is no
            SGLang server, belongs to another user, is one of two, or is one node of several.
    """
    if not is_loopback(url):
        raise SurroundingsError(f"{url}: only a server on this host (a loopback URL) can be restarted here")
    server = _server_at(url)
    try:
        found = ServerProcess(
            url=url,
            pid=server.pid,
            created=server.create_time(),
            argv=tuple(server.cmdline()),
            cwd=server.cwd(),
            env=server.environ(),
            conditions=conditions_of(server.pid),
        )
        owner = server.uids().real
    except psutil.Error as error:
        raise SurroundingsError(f"{url}: process {server.pid} cannot be read: {error}") from error
    if owner != os.getuid():
        raise SurroundingsError(
            f"{url}: process {server.pid} belongs to user {server.username()}: restart it as that user"
        )
    _refuse_many_nodes(found)
    return found


def _server_at(url: str) -> psutil.Process:
    """Return the one server whose processes listen at a URL."""
    servers: dict[int, psutil.Process] = {}
    for pid in pids_of(url):
        try:
            listener = psutil.Process(pid)
            server, seen = _topmost_server(listener), shown_command(listener.cmdline())[:500]
        except psutil.Error as error:
            raise SurroundingsError(f"{url}: process {pid} cannot be read: {error}") from error
        if server is None:
            raise SurroundingsError(
                f"{url}: expected an SGLang server (sglang.launch_server, sglang serve), found process "
                f"{pid}: {seen}"
            )
        servers[server.pid] = server
    if len(servers) > 1:
        raise SurroundingsError(
            f"{url}: expected one server, found processes {sorted(servers)}; write the address of one, not a "
            "name, and let one alone listen at it"
        )
    return next(iter(servers.values()))


def _topmost_server(listener: psutil.Process) -> psutil.Process | None:
    """Return the outermost ancestor of the listener (or itself) that is a server."""
    found = None
    for process in [listener, *listener.parents()]:
        try:
            if is_server_command(process.cmdline()) and _runs_server_file(process):
                found = process
        except psutil.Error:
            continue
    return found


def _runs_server_file(process: psutil.Process) -> bool:
    """Whether a process runs Python's or SGLang's file; yes when another user's is not shown to us."""
    try:
        name = os.path.basename(process.exe())
    except psutil.AccessDenied:
        return True
    return not name or SERVER_FILES.match(name) is not None


def _refuse_many_nodes(server: ServerProcess) -> None:
    words = [part for word in server.argv for part in word.split("=", 1)]
    for flag, value in zip(words, [*words[1:], ""], strict=True):
        if flag.replace("_", "-") == "--nnodes" and value not in ("1", ""):
            raise SurroundingsError(
                f"{server.url}: it is one of {value} nodes (--nnodes): restart them together, by hand"
            )
