"""One process at a time in a folder, for as long as it lives: an flock on the folder itself."""

import fcntl
import os
from pathlib import Path

from tasks.errors import SurroundingsError


def take_folder(folder: Path, purpose: str = "on this batch, got another that has its journal open") -> int:
    """Lock the folder for this process; return the descriptor that holds it.

    Args:
        folder: is made if absent.
        purpose: what the only process is to be on, and what another one would be: for the message.

    Raises:
        SurroundingsError: somebody else holds it.
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
            os.close(descriptor)
            raise SurroundingsError(
                f"{folder}: expected to be the only process {purpose}: let it finish, or end it"
            ) from None
        try:
            if os.path.samestat(os.fstat(descriptor), folder.stat()):
                return descriptor
        except FileNotFoundError:
            pass
        os.close(descriptor)
