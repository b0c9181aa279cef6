"""Leases: which worker is on a batch, so that two do not do the same work. Not needed for correctness.

A worker shows that it lives by rewriting one object of its own. A lease is created only if absent, under the
next fencing number of its batch; it lapses with its worker. Ages are by the store's clock. Two workers on one
batch would still end with one receipt.
"""

import secrets
from pathlib import Path
from typing import Final

import attrs
import orjson

from tasks.errors import TakenError
from tasks.job.spec import SCHEMA_VERSION
from tasks.store.contract import MissingError, ObjectStore, canonical
from tasks.store.disk import lasting_text

LEASE_SECONDS: Final = 90.0
"""A worker that was silent for so long is taken for dead; it shows itself three times as often."""

STALLED_LEASES: Final = 3
"""A process of this machine that lives and shows no sign of it is waited for so many times as long."""


@attrs.define(slots=True, eq=False)
class Leases:
    """The leases of one worker.

    Args:
        store: the job's own prefix.
        run: name of this worker, unique among all runs.
        home: name of the folder of journals on its machine, see `home_of`.
        seconds: after how much silence a worker is taken for dead.
    """

    store: ObjectStore
    run: str
    home: str
    seconds: float = LEASE_SECONDS
    held: dict[str, int] = attrs.field(factory=dict)
    _beats: int = 0

    def beat(self) -> None:
        """Show that this worker lives."""
        self._beats += 1
        data = {"schema": SCHEMA_VERSION, "run": self.run, "home": self.home, "beat": self._beats}
        self.store.put(_worker_key(self.run), canonical(data))

    def take(self, unit: str, *, holds_journal: bool) -> str | None:
        """Take a generation of a batch; return None when it is ours, else the living worker that has it.

        Args:
            unit: which, see `unit_name`.
            holds_journal: this process has the local journal of it open: then no worker of the same home
                that still lives has it, and nothing need be waited for.
        """
        if unit in self.held:
            return None
        if not self._beats:
            self.beat()
        while True:
            fence, run = self._last(unit)
            if run is not None and run != self.run and self._alive(run, holds_journal):
                return run
            data = {"schema": SCHEMA_VERSION, "unit": unit, "fence": fence + 1, "run": self.run}
            if self.store.put(_lease_key(unit, fence + 1), canonical(data), create_only=True):
                self.held[unit] = fence + 1
                return None

    def _last(self, unit: str) -> tuple[int, str | None]:
        """Return the highest fencing number of a batch and its worker; (0, None) when there is none."""
        keys = [info.key for info in self.store.list(f"leases/{unit}/")]
        if not keys:
            return 0, None
        last = max(keys)
        try:
            data = orjson.loads(self.store.get(last))
        except MissingError:  # its batch was committed this moment
            return 0, None
        return int(data["fence"]), None if data.get("released") else str(data["run"])

    def _alive(self, run: str, holds_journal: bool) -> bool:
        age = last_sign(self.store, run)
        if age is None or age > self.seconds:
            return False
        try:
            home = orjson.loads(self.store.get(_worker_key(run)))["home"]
        except MissingError:
            return False
        return not (holds_journal and home == self.home)

    def silence(self, unit: str) -> tuple[str | None, float | None]:
        """Return which worker has a generation of a batch, and for how many seconds it was silent.

        The worker is None when the batch is free, its silence when it never showed itself, or said goodbye.
        """
        _, run = self._last(unit)
        return run, None if run is None else last_sign(self.store, run)

    def check(self, unit: str) -> None:
        """Make sure that no other worker has taken the batch over.

        Raises:
            TakenError: one has, because this worker was silent for too long; its work goes on there.
        """
        fence, run = self._last(unit)
        if unit not in self.held or fence > self.held[unit]:
            self.held.pop(unit, None)
            raise TakenError(
                f"batch {unit}: expected to hold its lease, got worker {run} with fencing number {fence}: "
                f"this worker did not show itself for {self.seconds:.0f} s"
            )

    def release(self, unit: str) -> None:
        """Let go of an unfinished batch, so that another worker need not wait."""
        fence = self.held.pop(unit, None)
        if fence is not None:
            data = {
                "schema": SCHEMA_VERSION,
                "unit": unit,
                "fence": fence,
                "run": self.run,
                "released": True,
            }
            self.store.put(_lease_key(unit, fence), canonical(data))

    def drop(self, unit: str) -> None:
        """Delete a committed batch's leases."""
        self.held.pop(unit, None)
        for info in list(self.store.list(f"leases/{unit}/")):
            self.store.delete(info.key)

    def leave(self) -> None:
        """Release what is held and say goodbye."""
        for unit in list(self.held):
            self.release(unit)
        self.store.delete(_worker_key(self.run))


def home_of(journal_root: Path) -> str:
    """Return the lasting name of a folder of journals, made up when it is new."""
    return lasting_text(journal_root / "home", lambda: secrets.token_hex(16))


def last_sign(store: ObjectStore, run: str) -> float | None:
    """Return how long ago a worker last showed itself, in seconds; None: it never did, or said goodbye."""
    info = store.head(_worker_key(run))
    return None if info is None else info.age


def _worker_key(run: str) -> str:
    return f"workers/{run}.json"


def _lease_key(unit: str, fence: int) -> str:
    return f"leases/{unit}/{fence:06d}.json"
