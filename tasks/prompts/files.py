"""Addresses of prompts → files: a file, a folder, a glob, `s3://`, `hf://`."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import attrs

from tasks.errors import SourceError
from tasks.job.spec import StoreSpec
from tasks.prompts.jsonl import JsonlFile
from tasks.prompts.record import SourceFile

SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet")

Found = list[tuple[str, SourceFile]]
"""Files with the uri of each, in order."""


@attrs.frozen(slots=True)
class Finder:
    """Finds files; one serves all addresses of a job, so that they share an S3 client.

    Args:
        store: its endpoint is that of `s3://` addresses; None leaves it to the AWS chain.
        credentials: of that endpoint, as in `open_store`.
    """

    store: StoreSpec | None = None
    credentials: Mapping[str, str] | None = None
    _clients: dict[str, Any] = attrs.field(factory=dict, init=False)

    def find(self, address: str, where: str) -> Found:
        """Return the files that an address names, at least one.

        Args:
            address: file, folder, glob, `s3://…` or `hf://…`.
            where: the field that holds it, for messages.

        Raises:
            SourceError: it names no file, or one of an unknown kind.
        """
        if address.startswith("hf://"):
            from tasks.prompts.hub import HubDataset

            return [(address, HubDataset.at(address, where))]
        if address.startswith("s3://"):
            return self._in_s3(address, where)
        return [
            (
                str(path),
                _file(str(path), partial(_open_local, path), partial(stamp_of, path)),
            )
            for path in _expand(address, where)
        ]

    def _in_s3(self, address: str, where: str) -> Found:
        from tasks.prompts.s3_files import s3_objects  # boto3 is only loaded where it is used

        found = s3_objects(address, SUFFIXES, self.store, self.credentials, self._clients)
        if not found:
            raise SourceError(f"{where}: expected prompt files at {address!r}, found none")
        return [(item.uri, _file(item.uri, item.open, item.stamp)) for item in found]


def _expand(source: str, where: str) -> list[Path]:
    path = Path(source).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        found = sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES and p.is_file())
        if not found:
            raise SourceError(f"{where}: expected {', '.join(SUFFIXES)} files below {source!r}, found none")
        return found
    if any(sign in source for sign in "*?["):
        anchor = Path(path.anchor) if path.is_absolute() else Path()
        pattern = str(path.relative_to(path.anchor)) if path.is_absolute() else str(path)
        found = sorted(p for p in anchor.glob(pattern) if p.is_file())
        if not found:
            raise SourceError(f"{where}: expected files that match {source!r}, found none")
        return found
    raise SourceError(f"{where}: expected a file, a folder or a glob, found nothing at {source!r}")


def _open_local(path: Path) -> BinaryIO:
    return path.open("rb")


def stamp_of(path: Path) -> str | None:
    """Return size and time of change of a local file as text; None where it is not there."""
    try:
        seen = path.stat()
    except OSError:
        return None
    return f"{seen.st_size} bytes of {seen.st_mtime_ns}"


def _file(uri: str, opener: Callable[[], BinaryIO], stamp: Callable[[], str | None]) -> SourceFile:
    suffix = Path(uri).suffix
    if suffix == ".parquet":
        from tasks.prompts.parquet import ParquetFile  # pyarrow is only loaded where it is used

        return ParquetFile(uri, opener, stamp)
    if suffix in SUFFIXES:
        return JsonlFile(uri, opener, stamp)
    raise SourceError(f"{uri}: expected one of {', '.join(SUFFIXES)}, got {suffix or 'no suffix'!r}")
