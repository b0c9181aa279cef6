"""What rawseq asks of an object store.

Two stores keep the same contract (`tests/tasks/store/test_store.py` runs one table against both): a folder
and S3. A key is a relative path of plain segments. An object is either whole or absent, and once it was put
with `create_only` nobody replaces it through that call.
"""

import contextlib
import hashlib
import re
from collections.abc import Iterator
from typing import Any, Final, Protocol

import attrs
import orjson

from tasks.errors import DataError, JobError
from tasks.job.redaction import redact
from tasks.store.new_object import NewObject

YOUNG_SECONDS: Final = 3600.0
"""An older object is put again by whoever takes it up, so that it is young when orphans are collected."""

_SEGMENT = re.compile(r"[A-Za-z0-9._=-]+")


class MissingError(DataError):
    """An object that should be in the store is not there: names the object."""


@attrs.frozen(slots=True)
class ObjectInfo:
    """What a store says of one object.

    Args:
        key: relative to the store's prefix.
        size: bytes.
        sha256: hex digest that was stored with the object; "" where the store keeps none.
        modified: seconds since the epoch, by the store's clock.
        age: seconds since then, by the same clock when it was asked; no other clock is involved.
    """

    key: str
    size: int
    sha256: str
    modified: float
    age: float


class ObjectStore(Protocol):
    """Whole objects by key, under one prefix. Calls block: run them in a thread, never on an event loop.

    Every method raises `SurroundingsError` when a person must act (bucket, credentials, disk) and
    `LaterError` when the deadline passed without an answer.
    """

    @property
    def uri(self) -> str:
        """The prefix for people: a path or `s3://bucket/prefix`."""

    @property
    def typed(self) -> str:
        """The prefix and the options that reach it, as typed beside a verb in a shell."""

    def put(self, key: str, data: bytes, *, create_only: bool = False) -> bool:
        """Store `data` whole and durable; with `create_only` only if absent, else return False."""

    def create(self, key: str) -> NewObject:
        """Begin an object that is written piece by piece; it replaces `key` when it is published."""

    def get(self, key: str) -> bytes:
        """Return the object's bytes; `MissingError` if absent, `DataError` if not what was stored."""

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        """Return bytes [start, stop) of an object, unproved: its digest is of the whole; errors as `get`."""

    def head(self, key: str) -> ObjectInfo | None:
        """Return what is known of `key`, None if absent."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects whose key starts with `prefix`, in key order within a folder."""

    def children(self) -> Iterator[str]:
        """Yield the first path segments right below the prefix that have something below them."""

    def delete(self, key: str) -> None:
        """Remove `key`; nothing happens if it is absent."""

    def abort_leftovers(self, older_than_seconds: float) -> int:
        """Remove half-made objects (never visible as objects) that are so old; return how many there were."""

    def close(self) -> None:
        """Release connections."""


def check_key(key: str) -> str:
    """Return `key` if it is a relative path of plain segments.

    Raises:
        ValueError: for `..`, empty segments and characters that some store would change.
    """
    for segment in key.split("/"):
        if not _SEGMENT.fullmatch(segment) or segment in (".", "..") or len(segment) > 255:
            raise ValueError(f"object key {key!r}: segment {segment!r} is not [A-Za-z0-9._=-]{{1,255}}")
    return key


def canonical(value: Any) -> bytes:
    """Return `value` as canonical JSON: UTF-8, sorted keys, no spaces."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def sha256_hex(data: bytes) -> str:
    """Return the hex sha256 of `data`."""
    return hashlib.sha256(data).hexdigest()


def parse_s3_uri(uri: str) -> tuple[str, str]:
    """Return bucket and prefix of an `s3://bucket/prefix` address.

    Raises:
        JobError: when there is no bucket, or user info, query or fragment are in it.
    """
    match = re.fullmatch(r"s3://([a-z0-9][a-z0-9._-]{1,62})(?:/([^?#@]*))?", uri)
    if match is None:
        got = redact("".join(uri.split()))
        raise JobError(f"store.uri: expected s3://bucket/prefix without credentials or query, got {got!r}")
    return match[1], (match[2] or "").strip("/")


_PIECE_BYTES: Final = 8 * 2**20


def digest_of(store: ObjectStore, key: str, *, stored: bool = True) -> tuple[int, str] | None:
    """Return size and hex sha256 of an object, None if it is absent; it is never held in memory.

    The sha256 is that of its bytes, or with `stored` the one that the store keeps with it, where it does.
    """
    info = store.head(key)
    if info is None:
        return None
    if stored and info.sha256:
        return info.size, info.sha256
    found = hashlib.sha256()
    for start in range(0, info.size, _PIECE_BYTES):
        found.update(store.get_range(key, start, min(start + _PIECE_BYTES, info.size)))
    return info.size, found.hexdigest()


def put_content(store: ObjectStore, key: str, data: bytes) -> None:
    """Store `data` under a key that is named by its sha256; harmless when it is already there.

    What is there already is read back: a shard that was damaged is mended by the same bytes.

    Raises:
        DataError: what the store holds afterwards has another size or digest.
    """
    if store.put(key, data, create_only=True):
        return
    info = store.head(key)
    with contextlib.suppress(DataError):
        if info is not None and info.age < YOUNG_SECONDS and store.get(key) == data:
            return
    store.put(key, data)  # not what belongs there; or so old that it may be collected as an orphan just now
