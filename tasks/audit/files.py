"""The files of one receipt, read back against their digests and their schemas."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from tasks.audit.checks import BatchRows
from tasks.audit.report import Check
from tasks.dataset.shard_reader import decode_frequencies, decode_provenance, decode_rejected, decode_shard
from tasks.errors import DataError
from tasks.ledger.receipt import FOLDERS, FileEntry, Receipt
from tasks.store.commands import retry_command
from tasks.store.contract import ObjectStore, sha256_hex

_DECODERS: Final[dict[str, Callable[[bytes, str], Any]]] = {
    "shard": decode_shard,
    "rejected": decode_rejected,
    "provenance": decode_provenance,
    "frequencies": decode_frequencies,
}


Fetched = Mapping[str, bytes | DataError]
"""What was read of a receipt's files, by kind: bytes, or why there are none."""


def fetch_files(store: ObjectStore, receipt: Receipt) -> Fetched:
    """Read a receipt's files; blocks, and may run in any thread."""
    return {kind: _fetch(store, entry) for kind, entry in receipt.files().items()}


def _fetch(store: ObjectStore, entry: FileEntry) -> bytes | DataError:
    try:
        return store.get(entry.key)
    except DataError as error:
        return error


def decode_files(check: Check, receipt: Receipt, fetched: Fetched, store: str) -> BatchRows | None:
    """Check digests and decode; None, with the problems noted, when a file is not what the receipt says.

    Args:
        check: takes the problems.
        receipt: of the batch.
        fetched: what was read of its files.
        store: as `ObjectStore.typed`, for the command that makes the batch again.
    """
    found: dict[str, Any] = {}
    repair = retry_command(store, [receipt.batch])
    for kind, entry in receipt.files().items():
        data = _checked(check, kind, entry, fetched[kind], repair)
        if data is None:
            continue
        try:
            found[kind] = _DECODERS[kind](data, entry.key)
        except (DataError, orjson.JSONDecodeError) as error:
            check.problem(entry.key, None, f"a {kind} file of the schema", error, repair)
    if set(found) != set(receipt.files()):
        return None
    return BatchRows(
        receipt, found.get("shard"), found.get("rejected"), found["provenance"], found.get("frequencies")
    )


def _checked(check: Check, kind: str, entry: FileEntry, data: bytes | DataError, repair: str) -> bytes | None:
    expected = f"{FOLDERS[kind]}/{entry.sha256}.parquet"
    check.expect(entry.key == expected, entry.key, f"{expected} for a {kind} file", entry.key)
    text = f"{entry.bytes} bytes, sha256 {entry.sha256}"
    if isinstance(data, DataError):
        check.problem(entry.key, None, text, data, repair)
        return None
    found = (len(data), sha256_hex(data))
    good = found == (entry.bytes, entry.sha256)
    return data if check.expect(good, entry.key, text, found, repair=repair) else None
