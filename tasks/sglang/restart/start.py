"""The start of a server in the place of another: its folder, its environment, its conditions."""

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import BinaryIO, Final

import attrs

from tasks.errors import SurroundingsError
from tasks.job.redaction import shown_command
from tasks.sglang.restart.process import ServerProcess

LAUNCHER: Final = """
import json, os, resource, sys

def keep(call, *arguments):
    try:
        call(*arguments)
    except (OSError, ValueError, AttributeError):
        pass  # whoever started us reads back what we run under

told = json.load(sys.stdin)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
if told["niceness"] is not None:
    keep(os.setpriority, os.PRIO_PROCESS, 0, told["niceness"])
if told["cpus"]:
    keep(os.sched_setaffinity, 0, told["cpus"])
for number, soft, hard in told["limits"]:
    keep(resource.setrlimit, number, (soft, resource.getrlimit(number)[1]))  # where the hard one may not rise
    keep(resource.setrlimit, number, (soft, hard))
try:
    os.execvpe(told["argv"][0], told["argv"], told["env"])
except OSError as error:
    sys.exit(f"cannot start {told['argv'][0]}: {error}")
"""
"""Becomes the server, once it has taken on what that is to run under: in a process of its own and before its
first thread, so that all of them have it, and without code of ours between a fork and an exec."""


def start_server(server: ServerProcess, argv: Sequence[str], log: BinaryIO) -> subprocess.Popen[bytes]:
    """Start a server in a session of its own, logging to an open file, as another one was started.

    A program that cannot be run ends the process at once, with the reason in the log.

    Args:
        server: whose folder, environment, niceness, CPUs and limits it gets.
        argv: its command line.
        log: takes its output.

    Raises:
        SurroundingsError: no process can be started.
    """
    told = {"argv": list(argv), "env": server.env} | attrs.asdict(server.conditions)
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", LAUNCHER],
            cwd=server.cwd,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise SurroundingsError(f"{server.url}: cannot start {shown_command(argv)}: {error}") from error
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(json.dumps(told).encode())
    return process
