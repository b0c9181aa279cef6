"""Files that no receipt lists: leftovers of lost races and crashes, removed when old enough."""

from collections.abc import Iterator
from typing import Final

from tasks.errors import DataError
from tasks.ledger.ledger import Ledger
from tasks.ledger.receipt import FOLDERS, parse_receipt_key
from tasks.rows.hash_set import HashSet
from tasks.store.contract import ObjectInfo, ObjectStore

DAY_SECONDS: Final = 86_400.0
"""A younger file may belong to a batch whose receipt is about to be written."""


def find_orphans(store: ObjectStore, job_id: str) -> Iterator[ObjectInfo]:
    """Yield the files under `shards/` and its like that no receipt of any generation lists.

    Raises:
        DataError: a receipt cannot be read; without it nothing can be called an orphan.
    """
    ledger = Ledger(store, job_id)
    listed = HashSet()
    for info in store.list("receipts/"):
        place = parse_receipt_key(info.key)
        if place is None:
            raise DataError(f"{store.uri}/{info.key}: expected a receipt's name: orphans cannot be told")
        listed.update(entry.key for entry in ledger.receipt(*place).files().values())
    for folder in FOLDERS.values():
        for info in store.list(f"{folder}/"):
            if info.key not in listed:
                yield info


def collect_orphans(
    store: ObjectStore, job_id: str, older_than_seconds: float = DAY_SECONDS
) -> tuple[list[str], list[str]]:
    """Delete orphans that are old enough, and half-made objects of that age.

    The receipts are read again right before the deletion, so that a file that was committed meanwhile stays.

    Args:
        store: the job's own prefix.
        job_id: the job.
        older_than_seconds: least age by the store's clock.

    Returns:
        Keys that were deleted, and keys of orphans that are too young.
    """
    found = list(find_orphans(store, job_id))
    old = {info.key for info in found if info.age >= older_than_seconds}
    young = [info.key for info in found if info.key not in old]
    still = {info.key for info in find_orphans(store, job_id) if info.age >= older_than_seconds}
    deleted = []
    for key in sorted(old & still):
        info = store.head(key)
        if info is not None and info.age >= older_than_seconds:  # a batch that takes it up puts it again
            store.delete(key)
            deleted.append(key)
    store.abort_leftovers(older_than_seconds)
    return deleted, young
