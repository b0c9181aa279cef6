"""This machine's disk: one process at a time in a folder (an flock on it), and what a failed call means."""

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from tasks.errors import SurroundingsError


class HeldError(SurroundingsError):
    """Another living process has the folder: names it, where the system tells."""


def take_folder(folder: Path, purpose: str = "on this batch, got another that has its journal open") -> int:
    """Lock the folder for this process; return the descriptor that holds it.

    Args:
        folder: is made if absent.
        purpose: what the only process is to be on, and what another one would be: for the message.

    Raises:
        HeldError: another process holds it.
    """
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # its last owner has just removed it
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(descriptor)
            os.close(descriptor)
            raise HeldError(
                f"{folder}: expected to be the only process {purpose}{holder}: let it finish, or end it"
            ) from None
        try:
            if os.path.samestat(os.fstat(descriptor), folder.stat()):
                return descriptor
        except FileNotFoundError:
            pass
        os.close(descriptor)


def _holder(descriptor: int) -> str:
    """Return ` (process 7)` for who holds the lock of an open folder; "" where the system does not tell."""
    place = os.fstat(descriptor)
    name = f"{os.major(place.st_dev):02x}:{os.minor(place.st_dev):02x}:{place.st_ino}"
    try:
        locks = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return ""
    held = (line.split() for line in locks if "->" not in line)
    pids = [words[4] for words in held if words[1] == "FLOCK" and words[5] == name]
    return f" (process {pids[0]})" if pids else ""


def disk_advice(error: OSError) -> str:
    """Return what the system said of a failed file call, and what a person can do about it."""
    advice = {
        errno.ENOSPC: "free space on that disk, then run again: the job resumes",
        errno.EDQUOT: "raise the quota or free space, then run again: the job resumes",
        errno.EFBIG: "the file size limit was reached: raise it (ulimit -f), then run again: the job resumes",
        errno.EROFS: "the file system is read-only: mount it writable or choose another folder",
        errno.EACCES: "give this user write access or choose another folder",
        errno.EPERM: "this file system refuses the call (hard links are needed): choose another folder",
        errno.ENOTSUP: "this file system has no hard links: choose another folder",
        errno.ENOTDIR: "a part of the path is a file: choose another folder",
        errno.EMFILE: "too many open files: raise the limit (ulimit -n)",
    }.get(error.errno or 0, "see the system's message")
    return f"{error.strerror or error} ({errno.errorcode.get(error.errno or 0, '?')}): {advice}"


def lasting_text(path: Path, make: Callable[[], str]) -> str:
    """Return what a small file holds: made up once, readable by this user only, and kept from then on.

    It is written beside and then named, so it is whole or absent; one that a full disk or an older program
    left empty is made again.

    Raises:
        SurroundingsError: the disk does not take it.
    """
    text = path.read_text() if path.exists() else ""
    if text:
        return text
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(make())
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(new, path)  # of two that make it at once one is first
        except FileExistsError:
            if path.stat().st_size == 0:
                new.replace(path)
        new.unlink(missing_ok=True)
    except OSError as error:
        raise SurroundingsError(
            f"{path}: expected a file that can be written, got {disk_advice(error)}"
        ) from error
    return path.read_text()
