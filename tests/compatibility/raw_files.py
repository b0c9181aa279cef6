"""What a store's receipts, Parquet files and journal parts say, read without rawseq. Not a test module."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

MAGIC = b"RAWSEQJ1"


def shards_in(store: Path) -> list[str]:
    """Return the sha256 of the shards of a store whose batches have one receipt each, in batch order."""
    receipts = [json.loads(path.read_bytes()) for path in sorted(store.glob("*/receipts/*.json"))]
    return [receipt["shard"]["sha256"] for receipt in receipts if receipt["shard"]]


def rejected_in(store: Path) -> list[str]:
    """Return the ids of the rejected rows of a store."""
    tables = [pq.read_table(path) for path in sorted(store.glob("*/rejected/*.parquet"))]
    return [name for table in tables for name in table["row_id"].to_pylist()]


def journalled(folder: Path) -> list[str]:
    """Return the ids of the finished rows in the journal parts below a folder, or in their copies."""
    parts: dict[Path, bytes] = {}
    for path in sorted([*folder.rglob("*.journal"), *folder.rglob("*.part")]):
        part = path if path.suffix == ".journal" else path.parent
        parts[part] = parts.get(part, b"") + path.read_bytes()
    found = [header for data in parts.values() for header in headers(data)]
    return sorted({header["row_id"] for header in found if header["kind"] in ("completion", "unsent")})


def headers(part: bytes) -> Iterator[dict[str, Any]]:
    """Yield the headers of a journal part's whole frames."""
    assert part.startswith(MAGIC)
    place = len(MAGIC)
    while place + 12 <= len(part):
        length, _, header = struct.unpack_from("<III", part, place)
        if place + 8 + length > len(part):
            return
        yield json.loads(part[place + 12 : place + 12 + header])
        place += 8 + length
