"""Record ids that repeat, found among any number of records in little memory.

Each id leaves 8 bytes in one of 64 temporary files; a hash that occurs twice is looked up by a second scan.
"""

import contextlib
import tempfile
from array import array
from collections.abc import Iterable
from typing import IO, Self

import numpy as np

from tasks.errors import SourceError
from tasks.storage.record import Record

_BUCKETS = 64
_BUFFERED = 2**18
MASK = 0xFFFF_FFFF_FFFF_FFFF
"""Python's hashes are signed; the low 64 bits are kept."""


class HashSpill:
    """Collects hashes; use as a context, its files vanish at the end."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._buffers = [array("Q") for _ in range(_BUCKETS)]
        self._files: list[IO[bytes]] = []
        self._buffered = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, value: int) -> None:
        """Note one hash."""
        key = value & MASK
        self._buffers[key % _BUCKETS].append(key)
        self._buffered += 1
        if self._buffered >= _BUFFERED:
            self._spill()

    def _spill(self) -> None:
        if not self._files:
            enter = self._stack.enter_context
            self._files = [enter(tempfile.TemporaryFile()) for _ in range(_BUCKETS)]  # noqa: SIM115
        for buffer, file in zip(self._buffers, self._files, strict=True):
            file.write(buffer)
            del buffer[:]
        self._buffered = 0

    def repeated(self) -> frozenset[int]:
        """Return the hashes that occurred more than once."""
        found: set[int] = set()
        for index, buffer in enumerate(self._buffers):
            stored = b""
            if self._files:
                self._files[index].seek(0)
                stored = self._files[index].read()
            keys = np.sort(np.frombuffer(stored + buffer.tobytes(), np.uint64))
            found.update(int(key) for key in keys[1:][keys[1:] == keys[:-1]])
        return frozenset(found)


def refuse_repeated(suspects: frozenset[int], records: Iterable[tuple[Record, str]]) -> None:
    """Look again at the records whose id's hash repeated.

    Args:
        suspects: what `HashSpill.repeated` returned.
        records: the same records again, each with its file for messages.

    Raises:
        SourceError: two records of a source have one id: names both lines.
    """
    lines: dict[tuple[str, str], int] = {}
    for record, uri in records:
        key = (record.source, record.record_id)
        if hash(key) & MASK not in suspects:
            continue
        if key in lines:
            raise SourceError(
                f"{uri}:{record.line}: expected a record id that is unique in its source, got "
                f"{record.record_id!r} again (first at {uri}:{lines[key]}); row ids would repeat"
            )
        lines[key] = record.line
