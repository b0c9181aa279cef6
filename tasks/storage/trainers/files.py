"""The files of an export: each appears whole, its digest on record; a killed export goes on behind them."""

import hashlib
import os
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import attrs
import orjson

from tasks.errors import DataError, SurroundingsError
from tasks.records import Ids
from tasks.storage.folder_store import disk_advice
from tasks.storage.trainers.example import Example
from tasks.storage.trainers.masks import Mask

PROGRESS = "progress.jsonl"


@attrs.frozen(slots=True, eq=False)
class ExportRow:
    """One sequence as it is written.

    Args:
        example: where it comes from; its ids may be longer than these.
        input_ids: int32[n].
        loss_mask: bool[n].
    """

    example: Example
    input_ids: Ids
    loss_mask: Mask


class RowWriter(Protocol):
    """Writes rows into one open file."""

    def add(self, row: ExportRow) -> None:
        """Write a row, perhaps later."""

    def finish(self) -> None:
        """Write what is left; the file stays open."""


@attrs.frozen(slots=True)
class Part:
    """One finished file of an export."""

    name: str
    split: str
    sha256: str
    bytes: int
    rows: int
    tokens: int
    supervised: int


class Sink:
    """A file being written under a temporary name, with the sha256 and size of what was written."""

    closed = False
    """pyarrow asks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._sha = hashlib.sha256()
        self._temporary = path.with_name(f".{path.name}.partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = self._temporary.open("wb")
        except OSError as error:
            raise refusal(path, error) from error

    def write(self, data: Any) -> int:
        """Write bytes; return how many."""
        view = memoryview(data).cast("B")
        self._sha.update(view)
        try:
            self._file.write(view)
        except OSError as error:
            raise refusal(self.path, error) from error
        self.size += len(view)
        return len(view)

    def flush(self) -> None:
        """Nothing to do: `publish` makes it durable."""

    def close(self) -> None:
        """Nothing to do: a writer that closes what it writes into does not end the file."""

    def discard(self) -> None:
        """Give the file up."""
        self._file.close()
        self._temporary.unlink(missing_ok=True)

    def publish(self) -> str:
        """Make the file durable under its name; return the hex sha256."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._temporary.replace(self.path)
        except OSError as error:
            raise refusal(self.path, error) from error
        return self._sha.hexdigest()


def refusal(path: Path, error: OSError) -> SurroundingsError:
    """Return the error that says what a person can do about a failed file call."""
    return SurroundingsError(f"{path}: {disk_advice(error)}")


def write_file(path: Path, data: bytes) -> tuple[str, int]:
    """Write a small file whole; return its hex sha256 and size."""
    sink = Sink(path)
    sink.write(data)
    return sink.publish(), len(data)


class Progress:
    """The files that an earlier run of the same export finished, and those of this one."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / PROGRESS
        self._folder = folder
        self.finished: dict[str, Part] = {}
        data = self._path.read_bytes() if self._path.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]  # a killed run may leave half a line
        for line in whole.splitlines():
            try:
                part = Part(**orjson.loads(line))
            except (orjson.JSONDecodeError, TypeError):
                break  # not a line of ours: what it named is written again
            if self._stands(part):
                self.finished[part.name] = part
        write_file(self._path, b"".join(_line(part) for part in self.finished.values()))

    def _stands(self, part: Part) -> bool:
        path = self._folder / part.name
        if not path.is_file() or path.stat().st_size != part.bytes:
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(cast(Any, file), "sha256").hexdigest() == part.sha256

    def add(self, part: Part) -> None:
        """Put a file on record, durably."""
        self.finished[part.name] = part
        try:
            with self._path.open("ab") as file:
                file.write(_line(part))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise refusal(self._path, error) from error

    def remove(self) -> None:
        """Delete the record: the manifest holds it now."""
        self._path.unlink(missing_ok=True)


def _line(part: Part) -> bytes:
    return orjson.dumps(attrs.asdict(part)) + b"\n"


def check_same(part: Part, rows: int, tokens: int, supervised: int) -> None:
    """Check that a file of an earlier run holds what this run would have written.

    Raises:
        DataError: it does not: the store or the program changed in between.
    """
    found, now = (part.rows, part.tokens, part.supervised), (rows, tokens, supervised)
    if found != now:
        raise DataError(
            f"{part.name}: expected the rows, ids and supervised ids {now} of this export, found {found} on "
            f"record: export into another folder"
        )
