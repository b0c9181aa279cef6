"""The files of one receipt, read back against their digests and their schemas."""

from collections.abc import Callable
from typing import Any, Final

import orjson

from tasks.errors import DataError
from tasks.storage.audit_report import Check
from tasks.storage.audit_rows import BatchRows
from tasks.storage.receipt import FOLDERS, FileEntry, Receipt
from tasks.storage.shard_reader import decode_frequencies, decode_provenance, decode_rejected, decode_shard
from tasks.storage.store import ObjectStore, sha256_hex

_DECODERS: Final[dict[str, Callable[[bytes, str], Any]]] = {
    "shard": decode_shard,
    "rejected": decode_rejected,
    "provenance": decode_provenance,
    "frequencies": decode_frequencies,
}


def read_files(store: ObjectStore, check: Check, receipt: Receipt) -> BatchRows | None:
    """Read and decode a batch's files; None, with the problems noted, when one of them cannot be."""
    found: dict[str, Any] = {}
    for kind, entry in receipt.files().items():
        data = _read_file(store, check, kind, entry)
        if data is None:
            continue
        try:
            found[kind] = _DECODERS[kind](data, entry.key)
        except (DataError, orjson.JSONDecodeError) as error:
            check.problem(entry.key, None, f"a {kind} file of the schema", error)
    if set(found) != set(receipt.files()):
        return None
    return BatchRows(
        receipt, found.get("shard"), found.get("rejected"), found["provenance"], found.get("frequencies")
    )


def _read_file(store: ObjectStore, check: Check, kind: str, entry: FileEntry) -> bytes | None:
    expected = f"{FOLDERS[kind]}/{entry.sha256}.parquet"
    check.expect(entry.key == expected, entry.key, f"{expected} for a {kind} file", entry.key)
    try:
        data = store.get(entry.key)
    except DataError as error:
        check.problem(entry.key, None, f"{entry.bytes} bytes with sha256 {entry.sha256}", error)
        return None
    found = (len(data), sha256_hex(data))
    text = f"{entry.bytes} bytes, sha256 {entry.sha256}"
    return data if check.expect(found == (entry.bytes, entry.sha256), entry.key, text, found) else None
