"""The journal of one batch: its finished rows on local disk, so that a crash costs only what was in flight.

A journal is a folder of parts, one per run that worked on the batch. Opening it takes the folder for this
process, reads every part (the first reply per row wins), and starts a part of its own. Only an index is in
memory: per row a part and a byte range.
"""

import contextlib
import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Self

from tasks.errors import DataError, SurroundingsError
from tasks.job.spec import SCHEMA_VERSION
from tasks.ledger.batch import Batch
from tasks.ledger.frames import (
    MAGIC,
    Entry,
    completion_frame,
    decode_frame,
    encode_frame,
    read_frames,
    read_whole,
)
from tasks.ledger.journal_writer import WRITER, OpenPart
from tasks.rows.records import Completion
from tasks.store.disk import disk_advice, take_folder

_LOG = logging.getLogger("rawseq.journal")
_SUFFIX = ".journal"


class Journal:
    """An open journal. `append` is called on the event loop; everything else may block on the disk."""

    def __init__(self, folder: Path, job_id: str, batch: Batch, part: str, purpose: str, lock: int) -> None:
        self._folder = folder
        self._lock: int | None = lock
        self._header = {
            "kind": "start",
            "schema": SCHEMA_VERSION,
            "job_id": job_id,
            "batch": batch.index,
            "fingerprint": batch.fingerprint,
            "part": part,
        } | ({"purpose": purpose} if purpose else {})
        self._paths: list[Path] = []
        self._index: dict[str, Entry] = {}
        self._attempts: Counter[str] = Counter()
        self._own: OpenPart | None = None
        self._readers: dict[int, int] = {}
        self._end = 0
        self._read_bytes = 0
        self.set_aside: tuple[Path, ...] = ()  # parts of another job or other prompts, renamed

    @classmethod
    def open(cls, folder: Path, job_id: str, batch: Batch, part: str, purpose: str = "") -> Self:
        """Take the batch's folder and read what earlier runs left there.

        Args:
            folder: of this generation of this batch alone; made if absent.
            job_id: the job.
            batch: its fingerprint tells our parts from foreign ones.
            part: name of the part that this process writes; unique among the batch's runs.
            purpose: what a later generation is made for; parts that were begun for something else are left
                out, and removed with the rest.

        Raises:
            HeldError: another process has it open.
            SurroundingsError: the disk refuses.
        """
        try:
            lock = take_folder(folder)
        except OSError as error:
            raise SurroundingsError(f"{folder}: {disk_advice(error)}") from error
        journal = cls(folder, job_id, batch, part, purpose, lock)
        try:
            journal._read_parts()
            journal._own = journal._open_own(part)
        except OSError as error:
            journal.close()
            raise SurroundingsError(f"{folder}: {disk_advice(error)}") from error
        except BaseException:
            journal.close()
            raise
        return journal

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether the folder was let go of, by `close` or `remove`."""
        return self._lock is None

    @property
    def done(self) -> Mapping[str, Entry]:
        """Rows that are finished, by row id."""
        return self._index

    @property
    def attempts(self) -> Mapping[str, int]:
        """Failed attempts that count against a row, over all runs."""
        return self._attempts

    def _read_parts(self) -> None:
        aside = []
        for path in sorted(self._folder.glob(f"*{_SUFFIX}"), key=lambda p: (p.stat().st_mtime_ns, p.name)):
            if not self._read_part(path):
                path = path.rename(path.with_suffix(".foreign"))
                _LOG.warning("%s: written for another job or other prompts; set aside, not used", path)
                aside.append(path)
        self.set_aside = tuple(aside)

    def _read_part(self, path: Path) -> bool:
        """Index one part; False when it is foreign."""
        number = len(self._paths)
        with path.open("rb") as file:
            frames = read_frames(file)
            first = next(frames, None)
            if first is not None and any(
                first.header.get(key) != self._header[key]
                for key in ("kind", "job_id", "batch", "fingerprint")
            ):
                return False
            self._paths.append(path)
            if first is not None and first.header.get("purpose") != self._header.get("purpose"):
                return True
            end = first.stop if first is not None else 0
            for frame in frames:
                self._note(frame.header, Entry(number, frame.start, frame.stop))
                end = frame.stop
            self._read_bytes += end
            if (torn := path.stat().st_size - end) > 0:
                _LOG.warning("%s: %d bytes of a torn frame at its end are left out", path, torn)
        return True

    def _note(self, header: Mapping[str, object], entry: Entry) -> None:
        row_id = str(header.get("row_id"))
        if header["kind"] == "attempt":
            self._attempts[row_id] += 1
        elif header["kind"] in ("completion", "unsent"):
            self._index.setdefault(row_id, entry)

    def _open_own(self, part: str) -> OpenPart:
        number = 0
        while (path := self._folder / f"{part}-{number}{_SUFFIX}").exists():
            number += 1
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._paths.append(path)
        self._readers[len(self._paths) - 1] = descriptor
        if self._lock is not None:
            os.fsync(self._lock)  # the folder's own entry for the new file
        own = OpenPart(str(path), descriptor, 0)
        start = MAGIC + encode_frame(self._header | {"part": path.stem})
        self._end = len(start)
        WRITER.append(own, start)
        return own

    def append(self, completion: Completion) -> None:
        """Keep a finished row; a row that is already here is left as it is.

        Raises:
            SurroundingsError: the disk refused an earlier row (full, gone); the run must stop.
        """
        if completion.row_id in self._index:
            return
        start = self._put(completion_frame(completion))
        self._index[completion.row_id] = Entry(len(self._paths) - 1, start, self._end)

    def note_attempt(self, row_id: str, outcome: str, alone: bool) -> int:
        """Keep a failed attempt that counts against a row; return the row's count over all runs."""
        self._put(encode_frame({"kind": "attempt", "row_id": row_id, "outcome": outcome, "alone": alone}))
        self._attempts[row_id] += 1
        return self._attempts[row_id]

    def _put(self, frame: bytes) -> int:
        assert self._own is not None, f"{self._folder}: the journal is closed"
        WRITER.append(self._own, frame)
        start = self._end + 8
        self._end += len(frame)
        return start

    def get(self, row_id: str) -> Completion:
        """Return a finished row; `KeyError` when it is not finished.

        Raises:
            DataError: its bytes are not what was written.
        """
        entry = self._index[row_id]
        if self._own is not None and entry.part == len(self._paths) - 1 and entry.stop > self._own.size:
            self.flush()
        descriptor = self._reader(entry.part)
        frame = os.pread(descriptor, entry.stop - entry.start + 4, entry.start - 4)
        return self._decoded(row_id, entry.part, memoryview(frame))

    def _decoded(self, row_id: str, part: int, frame: memoryview) -> Completion:
        try:
            return decode_frame(frame)
        except ValueError:
            where = f"{self._paths[part]}: row {row_id}"
            raise DataError(f"{where}: its bytes changed since they were written") from None

    def _reader(self, part: int) -> int:
        if part not in self._readers:
            self._readers[part] = os.open(self._paths[part], os.O_RDONLY | os.O_CLOEXEC)
        return self._readers[part]

    def completions(self, row_ids: Iterable[str]) -> Iterator[Completion]:
        """Yield the rows in the order asked for; `KeyError` at one that is not finished.

        Each part is read as a whole, once, and is in memory as long as one of its rows is.

        Raises:
            DataError: a row's bytes are not what was written.
        """
        self.flush()
        parts: dict[int, memoryview] = {}
        for row_id in row_ids:
            entry = self._index[row_id]
            if entry.part not in parts:
                parts[entry.part] = read_whole(self._reader(entry.part))
            yield self._decoded(row_id, entry.part, parts[entry.part][entry.start - 4 : entry.stop])

    def flush(self) -> None:
        """Return when all that was appended is on disk.

        Raises:
            SurroundingsError: the disk refused.
        """
        if self._own is not None:
            WRITER.flush(self._own)

    @property
    def size(self) -> int:
        """Bytes of all its parts."""
        return self._read_bytes + self._end

    def written(self) -> tuple[Path, int]:
        """Return the part of this process and how many bytes of it have been written."""
        return self._paths[-1], self._own.size if self._own is not None else 0

    def close(self) -> None:
        """Bring everything to disk and let go of the folder; closing again does nothing.

        Raises:
            SurroundingsError: the disk refused; the journal is closed all the same.
        """
        lock, self._lock = (
            self._lock,
            None,
        )  # whoever takes it closes: a descriptor must never be closed twice
        if lock is None:
            return
        try:
            self.flush()
        finally:
            for descriptor in self._readers.values():
                os.close(descriptor)
            self._readers.clear()
            self._own = None
            os.close(lock)

    def remove(self) -> None:
        """Delete the journal: its batch is committed. Foreign parts stay."""
        assert self._lock is not None, f"{self._folder}: the journal is closed"
        for path in self._paths:
            path.unlink(missing_ok=True)
        self.close()
        with contextlib.suppress(OSError):  # a foreign part lies there, or another process has just come
            self._folder.rmdir()
