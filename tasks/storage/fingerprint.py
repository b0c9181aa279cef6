"""What a batch is known by: a hash over the job and its records (pure)."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Protocol

import attrs
import orjson

from tasks.storage.plan import Drop


class Named(Protocol):
    """What a fingerprint needs of a record."""

    @property
    def name(self) -> str:
        """`<source>:<record id>`."""

    @property
    def digest(self) -> str:
        """Hex sha256 of the record's raw content."""


def batch_fingerprint(
    job_id: str, resolved_sha256: str, records: Iterable[Named], dropped: Sequence[Drop] = ()
) -> str:
    """Return the hex sha256 over job id, what it resolved to, and each record's name and raw content.

    Where records are dropped, it is hashed once more together with them.
    """
    digest = hashlib.sha256(f"{job_id}\n{resolved_sha256}\n".encode())
    for record in records:
        digest.update(f"{len(record.name)} {record.name} {record.digest}\n".encode())
    return with_dropped(digest.hexdigest(), dropped)


def with_dropped(fingerprint: str, dropped: Sequence[Drop]) -> str:
    """Return the fingerprint of a batch some of whose records are dropped, from that of its records."""
    if not dropped:
        return fingerprint
    return hashlib.sha256(
        fingerprint.encode() + b"\n" + orjson.dumps([attrs.astuple(drop) for drop in dropped])
    ).hexdigest()
