"""What a run keeps in the store while it works: its sign of life, its leases, copies of its journals.

One thread does it, so the event loop and the window never wait for it. Without copies and other workers it
costs one small put every half minute.
"""

import logging
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from tasks.errors import RawseqError, TakenError
from tasks.storage.journal import Journal
from tasks.storage.journal_parts import PartCopy, drop_parts, fetch_parts
from tasks.storage.lease import LEASE_SECONDS, Leases, home_of
from tasks.storage.plan import Batch
from tasks.storage.store import ObjectStore

_LOG = logging.getLogger("rawseq.keeper")


class Keeper:
    """Opens journals under a lease and looks after both; use as a context. Its methods block.

    Args:
        store: the job's own prefix.
        journal_root: the job's folder of journals.
        run: name of this run, unique among all runs of the job.
        upload_seconds: how often journals are copied into the store; None: never.
        lease_seconds: after how much silence a run is taken for dead.
    """

    def __init__(
        self,
        store: ObjectStore,
        journal_root: Path,
        run: str,
        upload_seconds: float | None = None,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self._store = store
        self._root = journal_root
        self._leases = Leases(store, run, home_of(journal_root), lease_seconds)
        self._run = run
        self._upload_seconds = upload_seconds
        self._copies: dict[int, PartCopy] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="rawseq-keeper")

    def __enter__(self) -> Self:
        self._leases.beat()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        try:
            self._copy(list(self._copies.values()))
            self._leases.leave()
        except RawseqError as error:
            _LOG.warning("could not let go of leases: %s: they lapse by themselves", error)

    def open_journal(self, job_id: str, batch: Batch) -> Journal:
        """Open a batch's journal with what other machines left of it, under this run's lease.

        Raises:
            TakenError: a living worker has the batch; try again when it may have committed.
            SurroundingsError: another process of this machine has its journal open, or the disk refuses.
        """
        folder = self._root / f"{batch.index:06d}"
        fetch_parts(self._store, batch.index, folder)
        journal = Journal.open(folder, job_id, batch, self._run)
        try:
            other = self._leases.take(batch.index, holds_journal=True)
            if other is not None:
                raise TakenError(
                    f"batch {batch.index}: worker {other} has it and lives; its receipt will come"
                )
        except BaseException:
            journal.close()
            raise
        if self._upload_seconds is not None:
            with self._lock:
                self._copies[batch.index] = PartCopy(self._store, batch.index, journal)
        return journal

    def check(self, batch: Batch) -> None:
        """Raise `TakenError` when another worker has taken the batch over; see `Leases.check`."""
        self._leases.check(batch.index)

    def close_journal(self, batch: Batch, journal: Journal) -> None:
        """Close an unfinished batch's journal, copy the rest of it, and let go of the lease."""
        with self._lock:
            copy = self._copies.pop(batch.index, None)
        journal.flush()
        if copy is not None:
            copy.upload()
        journal.close()
        self._leases.release(batch.index)

    def committed(self, batch: Batch, journal: Journal) -> None:
        """Remove a committed batch's journal, its copies and its leases."""
        with self._lock:
            self._copies.pop(batch.index, None)
        journal.remove()
        drop_parts(self._store, batch.index)
        self._leases.drop(batch.index)

    def sweep(self, committed: Iterable[Batch]) -> None:
        """Delete copies and leases that crashes left of committed batches."""
        done = {f"{batch.index:06d}": batch.index for batch in committed}
        found = {
            info.key.split("/")[1] for kind in ("journals/", "leases/") for info in self._store.list(kind)
        }
        for name in found & done.keys():
            drop_parts(self._store, done[name])
            self._leases.drop(done[name])

    def _keep(self) -> None:
        beat = self._leases.seconds / 3
        next_beat, next_copy = time.monotonic() + beat, time.monotonic() + (self._upload_seconds or 0)
        while not self._ended.wait(min(beat, self._upload_seconds or beat, 1.0)):
            now = time.monotonic()
            try:
                if now >= next_beat:
                    self._leases.beat()
                    next_beat = now + beat
                if self._upload_seconds is not None and now >= next_copy:
                    with self._lock:
                        copies = list(self._copies.values())
                    self._copy(copies)
                    next_copy = now + self._upload_seconds
            except RawseqError as error:
                _LOG.warning("could not keep leases and journal copies up to date: %s", error)

    def _copy(self, copies: list[PartCopy]) -> None:
        for copy in copies:
            with self._lock:
                if copy.batch in self._copies:
                    copy.upload()
