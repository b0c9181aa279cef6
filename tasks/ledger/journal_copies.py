"""Journal parts kept in the store at an interval, so that another machine resumes a half-done batch.

A part is append-only, so its copy is a row of chunks: `journals/<unit>/<part>/<number>.part`. Put together
they are the part up to some byte; a torn frame at the end is left out by whoever reads it.
"""

import contextlib
from pathlib import Path

import attrs

from tasks.errors import SurroundingsError
from tasks.ledger.journal import Journal
from tasks.store.contract import MissingError, ObjectStore
from tasks.store.disk import disk_advice


@attrs.define(slots=True, eq=False)
class PartCopy:
    """Copies one open journal's own part, chunk by chunk.

    Args:
        store: the job's own prefix.
        unit: which generation of which batch, see `unit_name`.
        journal: the open journal.
        copied: bytes of its part that the store has.
        chunks: in so many objects.
        failing: its last copy failed, and that was told.
    """

    store: ObjectStore
    unit: str
    journal: Journal
    copied: int = 0
    chunks: int = 0
    failing: bool = False

    def upload(self) -> int:
        """Copy what was written since the last time; return how many bytes that was.

        Raises:
            SurroundingsError: the disk refused; what was not copied is the next call's.
        """
        path, size = self.journal.written()
        if size <= self.copied:
            return 0
        try:
            with path.open("rb") as file:
                file.seek(self.copied)
                data = file.read(size - self.copied)
        except OSError as error:
            raise SurroundingsError(f"{path}: {disk_advice(error)}") from error
        self.store.put(f"journals/{self.unit}/{path.stem}/{self.chunks:06d}.part", data)
        self.copied += len(data)
        self.chunks += 1
        return len(data)


def fetch_parts(store: ObjectStore, unit: str, folder: Path) -> int:
    """Put the parts that other machines left in the store beside the local ones; call before `Journal.open`.

    Args:
        store: the job's own prefix.
        unit: which generation of which batch, see `unit_name`.
        folder: its folder of journals.

    Returns:
        How many parts were fetched. A part that is here already, at least as long, is left as it is.
    """
    parts: dict[str, list[str]] = {}
    for info in store.list(f"journals/{unit}/"):
        parts.setdefault(info.key.split("/")[2], []).append(info.key)
    fetched = 0
    for stem, keys in parts.items():
        data = _whole(store, sorted(keys))
        path = folder / f"{stem}.journal"
        if path.exists() and path.stat().st_size >= len(data):
            continue
        try:
            folder.mkdir(parents=True, exist_ok=True)
            temporary = folder / f".{stem}.fetched"
            temporary.write_bytes(data)
            temporary.replace(path)
        except OSError as error:
            raise SurroundingsError(f"{path}: {disk_advice(error)}") from error
        fetched += 1
    return fetched


def _whole(store: ObjectStore, keys: list[str]) -> bytes:
    data = bytearray()
    for number, key in enumerate(keys):
        if not key.endswith(f"/{number:06d}.part"):
            break  # a gap: what lies behind it cannot be placed
        with contextlib.suppress(MissingError):
            data += store.get(key)
            continue
        break
    return bytes(data)


def drop_parts(store: ObjectStore, unit: str) -> None:
    """Delete the copies of what is committed."""
    for info in list(store.list(f"journals/{unit}/")):
        store.delete(info.key)
