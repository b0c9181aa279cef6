"""The ledger: what is planned, what is done. The one truth that runs, machines and people share.

Everything in it is created once, as one object, only if absent; nothing is ever overwritten.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson

from tasks.errors import DataError, IdentityError
from tasks.job.spec import SCHEMA_VERSION, JobSpec
from tasks.ledger import receipt as receipts_
from tasks.ledger.batch import Batch, Batches
from tasks.ledger.plan import Plan, check_schema, extended, plan_object, portions
from tasks.ledger.receipt import (
    FileEntry,
    Receipt,
    Receipts,
    Totals,
    parse_receipt_key,
    receipt_bytes,
    receipt_key,
)
from tasks.store.contract import ObjectStore, canonical, put_content, sha256_hex

__all__ = ["Batch", "FileEntry", "Ledger", "Plan", "Receipt", "Totals"]

_READERS = 16
"""Receipts are small: reading 40,000 of them is bound by round trips."""


class Ledger:
    """One job's ledger below its own prefix. Every method may raise what `ObjectStore` raises."""

    def __init__(self, store: ObjectStore, job_id: str) -> None:
        self._store = store
        self.job_id = job_id

    def open_job(self, spec: JobSpec, resolved: Mapping[str, Any]) -> None:
        """Create `job.json`, or check that the one there resolves to the same tokens.

        Raises:
            IdentityError: it does not; shows every difference by its path.
        """
        data = {
            "schema": SCHEMA_VERSION,
            "job_id": spec.job_id,
            "spec": spec.model_dump(mode="json"),
            "resolved": dict(resolved),
        }
        if self._store.put("job.json", canonical(data), create_only=True):
            return
        stored = self.job()
        found = list(_differences(stored["resolved"], orjson.loads(canonical(data["resolved"])), "resolved"))
        if stored["job_id"] != spec.job_id:
            found.insert(0, f"job_id: stored {stored['job_id']!r}, now {spec.job_id!r}")
        if found:
            lines = "\n  ".join(found[:20] + ([f"and {len(found) - 20} more"] if len(found) > 20 else []))
            raise IdentityError(
                f"{self._store.uri}/job.json: expected what this job resolved to at first, got:\n  {lines}\n"
                "Restore the model files or settings, or give the job another name."
            )

    def job(self) -> dict[str, Any]:
        """Return `job.json`; `MissingError` if there is none."""
        data = _parse(self._store.get("job.json"), "job.json")
        if not all(isinstance(data.get(key), kind) for key, kind in (("job_id", str), ("resolved", dict))):
            raise DataError(f"{self._store.uri}/job.json: expected job_id and resolved, got {sorted(data)}")
        return data

    def plan(self) -> Plan:
        """Return the plan as stored; it has no batches before the first `write_plan`."""
        plan = Plan(self.job_id)
        while self._store.head(_plan_key(plan.sequences)) is not None:
            key = _plan_key(plan.sequences)
            plan = extended(plan, _parse(self._store.get(key), key), key)
        return plan

    def plan_of(self, committed: Iterable[int]) -> Plan:
        """Return the plan as stored, which must hold the batches that were found committed before.

        Raises:
            DataError: it does not: a part of the plan is gone. Planning anew could cut other batches.
        """
        plan = self.plan()
        lost = sorted(index for index in committed if index >= len(plan.batches))
        if lost:
            raise DataError(
                f"{self._store.uri}/{_plan_key(plan.sequences)}: expected the plan of batch {lost[0]}, which "
                f"has a receipt, got no such object: restore it; {len(lost)} of the batches with a receipt, "
                f"up to {lost[-1]}, are in no plan"
            )
        return plan

    def rows_at_first(self) -> int | None:
        """Return `batch.rows` of the run that began the job; None without a `job.json`."""
        if self._store.head("job.json") is None:
            return None
        rows: int | None = self.job().get("spec", {}).get("batch", {}).get("rows")
        return rows

    def write_plan(
        self,
        plan: Plan,
        names: Mapping[str, str],
        batches: Batches,
        exclude: Sequence[str],
        stamps: Mapping[str, str] | None = None,
    ) -> Plan | None:
        """Write `batches` behind `plan`; None when somebody else wrote other ones first.

        Args:
            plan: as stored.
            names: name of each prompt file, by uri.
            batches: what follows.
            exclude: the job's `prompts.exclude`.
            stamps: how each source's file looked before it was read, by name.
        """
        named = dict(plan.sources) | {name: uri for uri, name in names.items()}  # where they lie now
        for part in portions(batches):
            key, sources = _plan_key(plan.sequences), tuple(named.items())
            data = canonical(plan_object(self.job_id, plan.sequences, sources, part, exclude, stamps))
            if not self._store.put(key, data, create_only=True) and self._store.get(key) != data:
                return None
            plan = extended(plan, orjson.loads(data), key)
        return plan

    def committed(self) -> dict[int, int]:
        """Return the highest generation of each batch that has a receipt, from a listing alone."""
        found: dict[int, int] = {}
        for info in self._store.list("receipts/"):
            place = parse_receipt_key(info.key)
            if place is not None:
                found[place[0]] = max(place[1], found.get(place[0], 0))
        return found

    def pending(self, plan: Plan) -> Batches:
        """Return the planned batches that have no receipt."""
        done = self.committed()
        return plan.batches.chosen(index for index in range(len(plan.batches)) if index not in done)

    def receipt(self, batch: int, generation: int) -> Receipt:
        """Return one receipt."""
        key = receipt_key(batch, generation)
        receipt = Receipt.of(_parse(self._store.get(key), key), key)
        if receipt.job_id != self.job_id:
            raise DataError(f"{self._store.uri}/{key}: expected job {self.job_id}, got {receipt.job_id}")
        return receipt

    def iter_receipts(self, committed: Mapping[int, int] | None = None) -> Iterator[Receipt]:
        """Yield the receipt that counts of every batch that is `committed` (now), in order, few at a time."""
        places = sorted((self.committed() if committed is None else committed).items())
        with ThreadPoolExecutor(_READERS, thread_name_prefix="rawseq-receipts") as pool:
            for first in range(0, len(places), 256):
                yield from pool.map(lambda place: self.receipt(*place), places[first : first + 256])

    def receipts(self) -> Receipts:
        """Return the receipt that counts of every committed batch, by batch."""
        return Receipts(self.iter_receipts())

    def put_file(self, folder: str, data: bytes, rows: int, tokens: int) -> FileEntry:
        """Store a batch's file under the sha256 of its bytes, and return what the receipt says of it."""
        digest = sha256_hex(data)
        key = f"{folder}/{digest}.parquet"
        put_content(self._store, key, data)
        return FileEntry(key, digest, len(data), rows, tokens)

    def commit(self, receipt: Receipt) -> Receipt:
        """Write the receipt, only if absent, read back what stands there, and return it: the one that counts.

        Raises:
            DataError: one of its files is not in the store as it says; the receipt is not written.
            IdentityError: a receipt of another fingerprint is there.
        """
        for kind, entry in receipt.files().items():
            info = self._store.head(entry.key)
            if info is None or info.size != entry.bytes:
                raise DataError(
                    f"{self._store.uri}/{entry.key}: expected the {kind} file of batch {receipt.batch} with "
                    f"{entry.bytes} bytes before its receipt, got {info and info.size}"
                )
        Receipt.of(orjson.loads(receipt_bytes(receipt)), receipt.key)
        self._store.put(receipt.key, receipt_bytes(receipt), create_only=True)
        stored = self.receipt(receipt.batch, receipt.generation)
        if (stored.fingerprint, stored.start, stored.stop) != (
            receipt.fingerprint,
            receipt.start,
            receipt.stop,
        ):
            raise IdentityError(
                f"{self._store.uri}/{receipt.key}: expected fingerprint {receipt.fingerprint} of records "
                f"[{receipt.start},{receipt.stop}), got {stored.fingerprint} of "
                f"[{stored.start},{stored.stop}): another job or other prompts were committed here"
            )
        return stored

    def fold(self, receipts: Mapping[int, Receipt] | Iterable[Receipt]) -> Totals:
        """Add up receipts: of `receipts()`, or one at a time of `iter_receipts()`."""
        return receipts_.fold(receipts.values() if isinstance(receipts, Mapping) else receipts)


def _plan_key(sequence: int) -> str:
    return f"plan/{sequence:06d}.json"


def _parse(data: bytes, where: str) -> dict[str, Any]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise DataError(f"{where}: expected JSON, got {error}") from error
    check_schema(value, where)
    return dict(value)


def _differences(stored: Any, now: Any, path: str) -> Iterator[str]:
    if isinstance(stored, dict) and isinstance(now, dict):
        for key in sorted({*stored, *now}):
            if key not in stored or key not in now:
                side = ("absent", repr(now[key])) if key in now else (repr(stored[key]), "absent")
                yield f"{path}.{key}: stored {side[0]}, now {side[1]}"
            else:
                yield from _differences(stored[key], now[key], f"{path}.{key}")
    elif stored != now:
        yield f"{path}: stored {stored!r}, now {now!r}"
