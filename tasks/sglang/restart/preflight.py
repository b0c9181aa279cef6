"""What the start of a server's successor needs, looked at before the first signal: else it stays dead.

Its folder, its program, its log; and that it sees the files that this run sees: in a container it does not.
"""

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Final

from tasks.errors import SurroundingsError
from tasks.job.redaction import shown_command
from tasks.sglang.restart.process import ServerProcess
from tasks.sglang.restart.supervisor import refuse_supervised

PROC: Final = Path("/proc")
"""Where Linux shows processes."""

NAMESPACES: Final = {"mnt": "mount", "pid": "process"}
"""Kernel namespaces that a server must share with us, by their names in `/proc/PID/ns`."""

LOG_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
LOG_MODE: Final = 0o600
"""SGLang logs its arguments, keys too."""


def check_successor(server: ServerProcess, argv: Sequence[str], log: Path) -> None:
    """Refuse a living server whose successor could not be started from here.

    Raises:
        SurroundingsError: it has a supervisor, sees other files than we do, or could not be started again.
    """
    refuse_supervised(server)
    check_same_files(server)
    check_start(server, argv)
    open_log(server, log).close()


def check_same_files(server: ServerProcess) -> None:
    """Refuse a living server of another namespace or root, or whose folder is not the one of that name now.

    Raises:
        SurroundingsError: it is one, or it cannot be told; carries what to write into the job instead.
    """
    theirs = PROC / str(server.pid)
    try:
        for name, words in NAMESPACES.items():
            its, ours = os.readlink(theirs / "ns" / name), os.readlink(PROC / "self" / "ns" / name)
            if its != ours:
                raise SurroundingsError(
                    f"{server.url}: process {server.pid} runs in another {words} namespace (a container?): "
                    f"expected {ours}, found {its}. {_by_its_keeper(server)}"
                )
        same_root = os.path.samefile(theirs / "root", PROC / "self" / "root")
        now = os.stat(theirs / "cwd")
    except OSError as error:
        raise SurroundingsError(
            f"{server.url}: cannot tell whether process {server.pid} sees the files that this run sees: "
            f"{error}. {_by_its_keeper(server)}"
        ) from error
    if not same_root:
        raise SurroundingsError(
            f"{server.url}: process {server.pid} has another root folder (chroot): expected this run's, "
            f"found {os.readlink(theirs / 'root')}. {_by_its_keeper(server)}"
        )
    _check_folder(server, now)


def check_start(server: ServerProcess, argv: Sequence[str]) -> None:
    """Refuse a command line that could not be started in a server's folder and environment.

    Raises:
        SurroundingsError: the folder cannot be entered, or there is no such program.
    """
    _check_folder(server, None)
    names = [argv[0]]
    if not os.path.dirname(argv[0]):  # looked up as `subprocess` does: in the server's own PATH
        names = [os.path.join(folder, argv[0]) for folder in os.get_exec_path(server.env)]
    paths = [os.path.join(server.cwd, name) for name in names]
    if not any(os.path.isfile(path) and os.access(path, os.X_OK) for path in paths):
        raise SurroundingsError(
            f"{server.url}: cannot start {shown_command(argv)}: expected a program that can be run, "
            f"found none at {', '.join(paths)}; put it back, or restart the server by hand"
        )


def _check_folder(server: ServerProcess, its: os.stat_result | None) -> None:
    """Refuse a working folder that cannot be entered, or that is not the process's own any more."""
    try:
        same = its is None or os.path.samestat(its, os.stat(server.cwd))
        fit = same and os.path.isdir(server.cwd) and os.access(server.cwd, os.X_OK)
        seen = "one that cannot be entered" if same else "another folder of that name"
    except OSError as error:
        fit, seen = False, str(error)
    if not fit:
        raise SurroundingsError(
            f"{server.url}: expected the working folder {server.cwd} of process {server.pid}, found {seen}; "
            "put it back, or restart the server by hand"
        )


def open_log(server: ServerProcess, path: Path) -> BinaryIO:
    """Open the log of a server to come, to be appended to; nobody but its owner may read it.

    Raises:
        SurroundingsError: it cannot be written, or is another user's.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        log = os.fdopen(os.open(path, LOG_FLAGS, LOG_MODE), "ab")
        try:
            if stat.S_IMODE(os.fstat(log.fileno()).st_mode) != LOG_MODE:
                os.fchmod(log.fileno(), LOG_MODE)
        except BaseException:
            log.close()
            raise
    except OSError as error:
        raise SurroundingsError(
            f"{server.url}: expected a log file that can be written, found {error}; make room for {path}"
        ) from error
    return log


def _by_its_keeper(server: ServerProcess) -> str:
    """Return what to write into the job, so that whatever started the server restarts it."""
    try:
        groups = (PROC / str(server.pid) / "cgroup").read_text()
    except OSError:
        groups = ""
    command = "docker restart NAME"
    if found := re.search(r"(docker|libpod)[-/]([0-9a-f]{12})[0-9a-f]{52}", groups):
        command = f"{'docker' if found[1] == 'docker' else 'podman'} restart {found[2]}"
    return (
        "Set servers.restart: command, with what restarts it, e.g.\n"
        f"  restart_commands: {{restart: {command}}}"
    )
