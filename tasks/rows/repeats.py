"""Ids and prompts that repeat, found among any number of records in little memory.

Each leaves a few bytes in one of 64 temporary files, chosen by its hash, so that equal ones meet in one file.
An id leaves 8 bytes: a hash that occurs twice is looked up by a second scan. A prompt leaves 32 (and its
record's name in one more file): its 16-byte key needs no second look.
"""

import contextlib
import os
import tempfile
from array import array
from collections.abc import Iterable, Iterator
from typing import IO, Protocol, Self

import attrs
import numpy as np
import orjson
from numpy.typing import NDArray

from tasks.errors import SourceError

_BUCKETS = 64
_BUFFERED = 2**18
_PART_BYTES = 2**20  # a multiple of every row's size
MASK = 0xFFFF_FFFF_FFFF_FFFF
"""Python's hashes are signed; the low 64 bits are kept."""


class Named(Protocol):
    """What is noted of a record."""

    @property
    def source(self) -> str:
        """Name of its source."""

    @property
    def line(self) -> int:
        """Its 1-based line or row there."""

    @property
    def record_id(self) -> str:
        """Its id, unique within the source."""


class Spill:
    """Collects rows of 64-bit numbers; use as a context, its files vanish at the end."""

    def __init__(self, width: int = 1) -> None:
        self._stack = contextlib.ExitStack()
        self._width = width
        self._buffers = [array("Q") for _ in range(_BUCKETS)]
        self._files: list[IO[bytes]] = []
        self._buffered = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _add(self, row: tuple[int, ...]) -> None:
        self._buffers[row[0] % _BUCKETS].extend(row)
        self._buffered += self._width
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

    def _parts(self) -> Iterator[NDArray[np.uint64]]:
        """Yield uint64[rows, width] of a megabyte or so; rows of one first number are all in one part."""
        for index in range(_BUCKETS):
            stored = self._files[index].seek(0, os.SEEK_END) if self._files else 0
            parts = np.uint64(1 + stored // _PART_BYTES)
            for part in range(int(parts)):
                blocks = [b[b[:, 0] // np.uint64(_BUCKETS) % parts == part] for b in self._blocks(index)]
                yield np.concatenate(blocks)

    def _blocks(self, index: int) -> Iterator[NDArray[np.uint64]]:
        """Yield all rows of one file, a megabyte at a time, and then those that were not written."""
        if self._files:
            self._files[index].seek(0)
            while block := self._files[index].read(_PART_BYTES):
                yield np.frombuffer(block, np.uint64).reshape(-1, self._width)
        yield np.frombuffer(self._buffers[index].tobytes(), np.uint64).reshape(-1, self._width)


class HashSpill(Spill):
    """Collects hashes of ids."""

    def add(self, value: int) -> None:
        """Note one hash."""
        self._add((value & MASK,))

    def repeated(self) -> frozenset[int]:
        """Return the hashes that occurred more than once."""
        found: set[int] = set()
        for part in self._parts():
            keys = np.sort(part[:, 0])
            found.update(int(key) for key in keys[1:][keys[1:] == keys[:-1]])
        return frozenset(found)


@attrs.frozen(slots=True)
class Repeat:
    """A prompt that came before.

    Args:
        number: where it was noted, as given to `PromptSpill.add`.
        source: name of its source.
        line: its line there.
        first: name of the first record with this prompt.
    """

    number: int
    source: str
    line: int
    first: str


class PromptSpill(Spill):
    """Collects the keys of prompts, each with its record's name and place."""

    def __init__(self) -> None:
        super().__init__(4)
        self._names = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        self._written = 0

    def add(self, key: bytes, number: int, record: Named) -> None:
        """Note one prompt: its 16-byte key, its number in plan order, and whose it is."""
        high, low = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
        self._add((high, low, number, self._written))
        line = orjson.dumps((record.source, record.line, record.record_id)) + b"\n"
        self._written += self._names.write(line)

    def repeats(self) -> Iterator[Repeat]:
        """Yield every prompt that has an equal one of a lower number; in no order."""
        for part in self._parts():
            rows = part[np.lexsort((part[:, 2], part[:, 1], part[:, 0]))]
            again = np.zeros(len(rows), np.bool_)
            again[1:] = (rows[1:, :2] == rows[:-1, :2]).all(axis=1)
            firsts = np.maximum.accumulate(np.where(again, 0, np.arange(len(rows))))
            names: dict[int, str] = {}
            for row in np.flatnonzero(again):
                at = int(rows[firsts[row], 3])
                if at not in names:
                    source, _, record_id = self._name(at)
                    names = {at: f"{source}:{record_id}"}
                source, line, _ = self._name(int(rows[row, 3]))
                yield Repeat(int(rows[row, 2]), source, line, names[at])

    def _name(self, offset: int) -> tuple[str, int, str]:
        self._names.seek(offset)
        source, line, record_id = orjson.loads(self._names.readline())
        return source, line, record_id


def refuse_repeated(suspects: frozenset[int], records: Iterable[tuple[Named, str]]) -> None:
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
