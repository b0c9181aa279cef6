"""The thread that carries journal bytes to disk: what was appended is written and synced in groups.

One thread serves every open journal of the process. A record costs the event loop one list append; kill -9
loses only what has not reached `write`, a power cut at most one interval.
"""

import contextlib
import os
import threading
import time
from collections import deque
from typing import Final

import attrs

from tasks.errors import SurroundingsError
from tasks.store.disk import disk_advice

SYNC_SECONDS: Final = 0.25
SYNC_BYTES: Final = 8 * 2**20
BUFFER_BYTES: Final = 64 * 2**20
_GATHER_SECONDS: Final = 0.02
"""Rows that finish within it cost one write. With 3 ms instead every row costs a sixth more: the two
threads hand the GIL back and forth (`tests/bench/profiles.md`). A kill costs what was finished within it.
"""
_SYNC_SHARE: Final = 0.2
"""With many files dirty at once a round of syncs takes long; it may take this share of the time, not more."""


@attrs.define(slots=True, eq=False)
class OpenPart:
    """A journal file that is being written: `size` bytes are good, `unsynced` of them may not be on disk."""

    path: str
    descriptor: int
    size: int
    waiting: deque[bytes] = attrs.field(factory=deque)
    unsynced: int = 0
    unsynced_since: float = 0.0
    error: SurroundingsError | None = None


class JournalWriter:
    """Owns the writing thread; it runs while there is something to write or sync, and a moment longer."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._dirty: dict[int, OpenPart] = {}
        self._buffered = 0
        self._hurry = threading.Event()
        self._rest_until = 0.0
        self._thread: threading.Thread | None = None

    def append(self, part: OpenPart, frame: bytes) -> None:
        """Queue a frame. Blocks only when 64 MB wait for the disk.

        Raises:
            SurroundingsError: an earlier write of this part failed; nothing more is taken.
        """
        with self._changed:
            while self._buffered > BUFFER_BYTES and part.error is None:
                self._changed.wait()
            if part.error is not None:
                raise part.error
            part.waiting.append(frame)
            self._buffered += len(frame)
            self._dirty[id(part)] = part
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rawseq-journal")
                self._thread.start()
            self._changed.notify_all()

    def flush(self, part: OpenPart) -> None:
        """Return when all that was appended to `part` is on disk.

        Raises:
            SurroundingsError: it could not be written.
        """
        with self._changed:
            while id(part) in self._dirty and part.error is None:
                self._hurry.set()
                self._changed.notify_all()
                self._changed.wait()
            if part.error is not None:
                raise part.error

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._dirty and not self._changed.wait_for(lambda: bool(self._dirty), SYNC_SECONDS):
                    self._thread = None
                    return
                parts = list(self._dirty.values())
            for part in parts:
                self._write(part)
            self._sync(parts)
            self._hurry.wait(_GATHER_SECONDS)
            with self._changed:
                self._changed.wait_for(self._has_work, SYNC_SECONDS / 4)

    def _has_work(self) -> bool:
        return self._hurry.is_set() or any(part.waiting for part in self._dirty.values())

    def _write(self, part: OpenPart) -> None:
        with self._changed:
            frames = list(part.waiting)
            part.waiting.clear()
        if not frames:
            return
        data = b"".join(frames)
        try:
            _write_all(part.descriptor, data, part.size)
        except OSError as error:
            self._fail(part, error, len(data))
            return
        with self._changed:
            if part.unsynced == 0:
                part.unsynced_since = time.monotonic()
            part.size += len(data)
            part.unsynced += len(data)
            self._buffered -= len(data)
            self._changed.notify_all()

    def _sync(self, parts: list[OpenPart]) -> None:
        now = time.monotonic()
        with self._changed:
            hurry = self._hurry.is_set()
            self._hurry.clear()
            due = [part for part in parts if part.unsynced and (hurry or self._is_due(part, now))]
        for part in due:
            try:
                os.fdatasync(part.descriptor)
            except OSError as error:
                self._fail(part, error, 0)
                continue
            with self._changed:
                part.unsynced = 0
                if not part.waiting:
                    self._dirty.pop(id(part), None)
                self._changed.notify_all()
        if due:
            self._rest_until = time.monotonic() + (time.monotonic() - now) * (1 / _SYNC_SHARE - 1)

    def _is_due(self, part: OpenPart, now: float) -> bool:
        if part.unsynced >= SYNC_BYTES:
            return True
        return now - part.unsynced_since >= SYNC_SECONDS and now >= self._rest_until

    def _fail(self, part: OpenPart, error: OSError, lost: int) -> None:
        with contextlib.suppress(OSError):  # leave no half frame; a torn one is left out when it is read
            os.ftruncate(part.descriptor, part.size)
        with self._changed:
            part.error = SurroundingsError(f"{part.path}: {disk_advice(error)}")
            self._buffered -= lost + sum(map(len, part.waiting))
            part.waiting.clear()
            self._dirty.pop(id(part), None)
            self._changed.notify_all()


def _write_all(descriptor: int, data: bytes, place: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, place)
        view = view[written:]
        place += written


WRITER: Final = JournalWriter()
"""The process's one writer."""
