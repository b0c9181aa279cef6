"""A script that undoes a restart: former command line, folder and environment, for their owner alone."""

import asyncio
import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from tasks.errors import RawseqError, SurroundingsError
from tasks.job.redaction import shown_command
from tasks.sglang.restart.conditions import Conditions
from tasks.sglang.restart.listener import listeners_of
from tasks.sglang.restart.lock import restart_lock
from tasks.sglang.restart.preflight import check_start, open_log
from tasks.sglang.restart.process import ServerProcess, find_server
from tasks.sglang.restart.start import start_server
from tasks.sglang.restart.stop import stop_server

SCRIPT: Final = """#!{python}
# Undoes a restart of {url}: stops the server that was started and starts the former command line.
# It holds the environment of that one, with its secrets: readable by its owner only.
import sys
sys.path.insert(0, {root!r})
from tasks.sglang.restart.undo import undo
undo({told!r})
"""

LOCK_SECONDS: Final = 60.0
"""How long another restart of the same server is waited for."""


def write_undo(server: ServerProcess, argv: Sequence[str], drain_seconds: float, log: Path) -> Path:
    """Write the script that undoes a restart, beside the log; return its path.

    Args:
        server: as it runs now.
        argv: the command line that is to replace its own.
        drain_seconds: how long the successor may finish its work when it is stopped.
        log: where the successor logs, and the former command line when it is back.

    Raises:
        SurroundingsError: it cannot be written.
    """
    told = {
        "url": server.url,
        "argv": server.argv,
        "cwd": server.cwd,
        "env": server.env,
        "conditions": attrs.asdict(server.conditions),
        "successor": list(argv),
        "drain_seconds": drain_seconds,
        "log": str(log.absolute()),
    }
    root = str(Path(__file__).resolve().parents[3])
    text = SCRIPT.format(python=sys.executable, url=server.url, root=root, told=json.dumps(told))
    path = log.with_name(f"rawseq-undo-{server.port}-{server.pid}.py").absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
    except OSError as error:
        raise SurroundingsError(
            f"{server.url}: expected a file that can be written, which undoes the restart, found {error}; "
            f"make room for {path}"
        ) from error
    return path


def undo_command(script: Path) -> str:
    """Return what to type to run such a script."""
    return shlex.join([sys.executable, str(script)])


def undo(text: str) -> None:
    """Undo a restart, as its script tells; ends the process with the reason when it cannot be."""
    told: dict[str, Any] = json.loads(text)
    conditions = told["conditions"]
    conditions["cpus"] = tuple(conditions["cpus"])
    conditions["limits"] = tuple(map(tuple, conditions["limits"]))
    former = ServerProcess(
        told["url"], 0, 0.0, tuple(told["argv"]), told["cwd"], told["env"], Conditions(**conditions)
    )
    try:
        work = _undo(former, tuple(told["successor"]), told["drain_seconds"], Path(told["log"]))
        print(asyncio.run(work))
    except RawseqError as error:
        sys.exit(f"{type(error).__name__}: {error}")


async def _undo(former: ServerProcess, successor: tuple[str, ...], drain_seconds: float, log: Path) -> str:
    async with restart_lock(former.url, LOCK_SECONDS):
        running = find_server(former.url) if listeners_of(former.url) else None
        if running is not None and running.argv == former.argv:
            return f"{former.url}: process {running.pid} runs with that command line already"
        if running is not None and running.argv != successor:
            raise SurroundingsError(
                f"{former.url}: expected the server of the restart, {shown_command(successor)}, found "
                f"process {running.pid}: {running.command}; stop it by hand first"
            )
        check_start(former, former.argv)
        with open_log(former, log) as out:
            if running is not None:
                await stop_server(running, drain_seconds)
            process = start_server(former, former.argv, out)
        process.returncode = 0  # it outlives us on purpose
        return f"{former.url}: started process {process.pid}, log {log}: {former.command}"
