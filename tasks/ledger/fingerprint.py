"""What a batch is known by: a hash over the job and its records (pure)."""

import hashlib
from collections.abc import Iterable
from typing import Protocol


class Named(Protocol):
    """What a fingerprint needs of a record."""

    @property
    def name(self) -> str:
        """`<source>:<record id>`."""

    @property
    def digest(self) -> str:
        """Hex sha256 of the record's raw content."""


def batch_fingerprint(
    job_id: str, resolved_sha256: str, records: Iterable[Named], dropped: bytes = b""
) -> str:
    """Return the hex sha256 over job id, what it resolved to, and each record's name and raw content.

    Where records are dropped, it is hashed once more together with their JSON.
    """
    digest = hashlib.sha256(f"{job_id}\n{resolved_sha256}\n".encode())
    for record in records:
        digest.update(f"{len(record.name)} {record.name} {record.digest}\n".encode())
    return with_dropped(digest.hexdigest(), dropped)


def span_digest(records: Iterable[Named]) -> str:
    """Return the hex sha256 over the contents of one source's records in a batch, in its order."""
    digest = hashlib.sha256()
    for record in records:
        digest.update(bytes.fromhex(record.digest))
    return digest.hexdigest()


def with_dropped(fingerprint: str, dropped: bytes) -> str:
    """Return the fingerprint of a batch some of whose records are dropped, from that of its records."""
    return hashlib.sha256(fingerprint.encode() + b"\n" + dropped).hexdigest() if dropped else fingerprint
