"""A file gathered on this machine before its upload: S3 wants to know size and digest first."""

import os
import tempfile
from collections.abc import Callable
from typing import BinaryIO, NoReturn, cast

from tasks.errors import SurroundingsError
from tasks.store.disk import disk_advice
from tasks.store.new_object import NewObject
from tasks.store.s3_parts import Content


def staged_object(put: Callable[[Content], None]) -> NewObject:
    """Return an object that `put` uploads, gathered in a nameless file of `TMPDIR`: no kill leaves it.

    Raises:
        SurroundingsError: no file can be made there; so does a write when that disk is full.
    """
    try:
        file = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115 - closed with the object
    except OSError as error:
        _refuse(error)

    def read(start: int, stop: int) -> bytes:
        return os.pread(file.fileno(), stop - start, start)

    def publish(sha256: str) -> None:
        put(Content(os.fstat(file.fileno()).st_size, sha256, read))

    return NewObject(file, publish, lambda: None, _refuse)


def _refuse(error: OSError) -> NoReturn:
    raise SurroundingsError(
        f"{tempfile.gettempdir()} (TMPDIR, where a file is gathered before its upload): {disk_advice(error)}"
    ) from error
