"""What a run keeps in the store while it works: its sign of life, its leases, copies of its journals.

One thread does it, so the event loop and the window never wait for it. Without copies and other workers it
costs one small put every half minute.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tasks.errors import LaterError, RawseqError, StalledError, TakenError
from tasks.ledger.batch import Batch
from tasks.ledger.fence import LEASE_SECONDS, STALLED_LEASES, Leases, home_of
from tasks.ledger.journal import Journal
from tasks.ledger.journal_copies import PartCopy, drop_parts, fetch_parts
from tasks.ledger.journal_folder import disk_bytes
from tasks.ledger.receipt import parse_unit, receipt_key, unit_name
from tasks.store.contract import ObjectStore
from tasks.store.disk import HeldError

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
        self._copies: dict[str, PartCopy] = {}
        self._open: set[str] = set()
        self._stalled: dict[str, float] = {}  # since when who holds its journal was seen to be silent
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
        self._copy(list(self._copies.values()))
        try:
            self._leases.leave()
        except RawseqError as error:
            _LOG.warning("could not let go of leases: %s: they lapse by themselves", error)

    def open_journal(self, job_id: str, batch: Batch, generation: int = 0, purpose: str = "") -> Journal:
        """Open the journal of a batch with what other machines left of it, under this run's lease.

        Args:
            job_id: the job.
            batch: which.
            generation: of the receipt that it will get; each has a lease and a journal of its own.
            purpose: what a later generation is made for, see `Journal.open`.

        Raises:
            TakenError: a living worker has it, or its receipt came; look again whether it is committed.
            StalledError: a process of this machine has its journal open and shows no sign of life.
            SurroundingsError: the disk refuses.
        """
        unit = unit_name(batch.index, generation)
        folder = self._root / unit
        fetch_parts(self._store, unit, folder)
        try:
            journal = Journal.open(folder, job_id, batch, self._run, purpose)
        except HeldError as error:
            raise self._held(unit, error) from error
        self._stalled.pop(unit, None)
        try:
            other = self._leases.take(unit, holds_journal=True)
            if other is not None:
                raise TakenError(f"batch {unit}: worker {other} has it and lives; its receipt will come")
            if self._store.head(receipt_key(batch.index, generation)) is not None:
                self.committed(unit, journal)
                raise TakenError(f"batch {unit}: another worker has committed it meanwhile")
        except BaseException:
            journal.close()
            raise
        with self._lock:
            self._open.add(unit)
            if self._upload_seconds is not None:
                self._copies[unit] = PartCopy(self._store, unit, journal)
        return journal

    def _held(self, unit: str, error: HeldError) -> TakenError | StalledError:
        """Return what a journal that another process of this machine has open means for its batch."""
        run, silence = self._leases.silence(unit)
        lease, now = self._leases.seconds, time.monotonic()
        if silence is not None and silence <= lease:
            self._stalled.pop(unit, None)
            return TakenError(f"batch {unit}: {run} has it and lives; its receipt will come: {error}")
        limit, waited = STALLED_LEASES * lease, now - self._stalled.setdefault(unit, now)
        text = f"batch {unit}: {error}; it shows no sign of life"
        if waited > limit:
            return StalledError(f"{text}, and was waited for {limit:.0f} s: end it, then run again")
        return TakenError(f"{text}, waited for {waited:.0f} of {limit:.0f} s")

    def crowded(self, limit: int) -> int:
        """Return how many bytes the journals take on the disk; 0 below `limit`, or when none is open here.

        What is open will be committed and removed: until then it is worth waiting.
        """
        with self._lock:
            if not self._open:
                return 0
        held = disk_bytes(self._root)
        return held if held > limit else 0

    def check(self, unit: str) -> None:
        """Raise `TakenError` when another worker has taken the work over; see `Leases.check`."""
        self._leases.check(unit)

    def close_journal(self, unit: str, journal: Journal) -> None:
        """Close an unfinished journal, copy the rest of it, and let go of the lease."""
        with self._lock:
            self._open.discard(unit)
            copy = self._copies.pop(unit, None)
        with contextlib.ExitStack() as stack:  # a disk that refuses must not keep folder and lease
            stack.callback(self._leases.release, unit)
            stack.callback(journal.close)
            journal.flush()
            if copy is not None:
                copy.upload()

    def committed(self, unit: str, journal: Journal) -> None:
        """Remove the journal, its copies and the leases of what is committed."""
        with self._lock:
            self._open.discard(unit)
            self._copies.pop(unit, None)
        journal.remove()
        drop_parts(self._store, unit)
        self._leases.drop(unit)

    def sweep(self, committed: Mapping[int, int]) -> None:
        """Delete copies and leases that crashes left of committed generations; see `Ledger.committed`."""
        for name in {
            i.key.split("/")[1] for kind in ("journals/", "leases/") for i in self._store.list(kind)
        }:
            place = parse_unit(name)
            if place is not None and committed.get(place[0], -1) >= place[1]:
                drop_parts(self._store, name)
                self._leases.drop(name)

    def _keep(self) -> None:
        beat = self._leases.seconds / 3
        next_beat, next_copy = time.monotonic() + beat, time.monotonic() + (self._upload_seconds or 0)
        while not self._ended.wait(min(beat, self._upload_seconds or beat, 1.0)):
            now = time.monotonic()
            if now >= next_beat and self._beat():
                next_beat = now + beat
            if self._upload_seconds is not None and now >= next_copy:
                with self._lock:
                    copies = list(self._copies.values())
                self._copy(copies)
                next_copy = now + self._upload_seconds

    def _beat(self) -> bool:
        """Whether this run could show that it lives; else that is told."""
        try:
            self._leases.beat()
        except (RawseqError, OSError) as error:  # this thread's end would be the end of all leases
            _LOG.warning("could not keep leases up to date: %s", error)
            return False
        return True

    def _copy(self, copies: list[PartCopy]) -> None:
        """Copy journals; one that the disk refuses is told once, holds up no other, and has its next turn."""
        for copy in copies:
            with self._lock:
                if copy.unit not in self._copies:
                    continue
                try:
                    copy.upload()
                except (RawseqError, OSError) as error:
                    if not copy.failing:
                        _LOG.warning("could not copy the journal of batch %s: %s", copy.unit, error)
                    copy.failing = True
                    if isinstance(error, LaterError):
                        return  # the store does not answer: the others would each wait for it as long
                else:
                    copy.failing = False
