"""A folder as an object store: every object is a file that appears whole, or not at all."""

import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import attrs

from tasks.errors import SurroundingsError
from tasks.store.commands import typed_store
from tasks.store.contract import MissingError, ObjectInfo, check_key
from tasks.store.disk import disk_advice
from tasks.store.new_object import NewObject

_TEMPORARY = ".tmp-"


@attrs.frozen(slots=True)
class FolderStore:
    """Objects as files below `folder`: written to a temporary name, synced, then linked or renamed."""

    folder: Path

    @property
    def uri(self) -> str:
        """The folder's path."""
        return str(self.folder)

    @property
    def typed(self) -> str:
        """See `ObjectStore.typed`."""
        return typed_store(self.uri)

    def put(self, key: str, data: bytes, *, create_only: bool = False) -> bool:
        """See `ObjectStore.put`. `create_only` is a hard link, which exactly one of several writers wins."""
        path = self.folder / check_key(key)
        try:
            if create_only and path.exists():
                return False
            path.parent.mkdir(parents=True, exist_ok=True)
            return self._publish(path, data, create_only)
        except OSError as error:
            self._refuse(key, error)

    def _publish(self, path: Path, data: bytes, create_only: bool) -> bool:
        temporary = path.parent / f"{_TEMPORARY}{secrets.token_hex(8)}"
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if create_only:
                os.link(temporary, path)
            else:
                temporary.replace(path)
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        _sync_folders(path.parent, self.folder)
        return True

    def create(self, key: str) -> NewObject:
        """See `ObjectStore.create`; gathered beside its place, under a temporary name."""
        path = self.folder / check_key(key)
        temporary = path.parent / f"{_TEMPORARY}{secrets.token_hex(8)}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = temporary.open("xb")
        except OSError as error:
            self._refuse(key, error)

        def publish(sha256: str) -> None:
            del sha256  # a folder keeps none
            os.fsync(file.fileno())
            temporary.replace(path)
            _sync_folders(path.parent, self.folder)

        return NewObject(
            file, publish, lambda: temporary.unlink(missing_ok=True), lambda error: self._refuse(key, error)
        )

    def get(self, key: str) -> bytes:
        """See `ObjectStore.get`."""
        try:
            return (self.folder / check_key(key)).read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise MissingError(f"{self.uri}/{key}: expected an object, found none") from None
        except OSError as error:
            self._refuse(key, error)

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        """See `ObjectStore.get_range`."""
        try:
            with (self.folder / check_key(key)).open("rb") as file:
                file.seek(start)
                return file.read(stop - start)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise MissingError(f"{self.uri}/{key}: expected an object, found none") from None
        except OSError as error:
            self._refuse(key, error)

    def head(self, key: str) -> ObjectInfo | None:
        """See `ObjectStore.head`; a folder keeps no digest."""
        return self._info(check_key(key))

    def _info(self, key: str) -> ObjectInfo | None:
        path = self.folder / key
        try:
            stat = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self._refuse(key, error)
        if not path.is_file():
            return None
        return ObjectInfo(key, stat.st_size, "", stat.st_mtime, max(0.0, time.time() - stat.st_mtime))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list`; one directory's names are held at a time."""
        base, _, _ = prefix.rpartition("/")
        yield from self._walk(base, prefix)

    def _walk(self, base: str, prefix: str) -> Iterator[ObjectInfo]:
        try:
            with os.scandir(self.folder / base) as entries:
                # "a/" sorts against "a.b" as an object store sorts whole keys
                found = sorted((f"{entry.name}/" if entry.is_dir() else entry.name) for entry in entries)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            self._refuse(base, error)
        for name in found:
            key = f"{base}/{name}" if base else name
            if name.startswith(_TEMPORARY) or not (key.startswith(prefix) or prefix.startswith(key)):
                continue
            if key.endswith("/"):
                yield from self._walk(key.rstrip("/"), prefix)
            elif (info := self._info(key)) is not None:
                yield info

    def children(self) -> Iterator[str]:
        """See `ObjectStore.children`."""
        try:
            yield from sorted(entry.name for entry in self.folder.iterdir() if entry.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            self._refuse("", error)

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        try:
            (self.folder / check_key(key)).unlink(missing_ok=True)
        except NotADirectoryError:
            return
        except OSError as error:
            self._refuse(key, error)

    def abort_leftovers(self, older_than_seconds: float) -> int:
        """See `ObjectStore.abort_leftovers`: temporary files of writers that were killed."""
        count = 0
        try:
            for path in self.folder.rglob(f"{_TEMPORARY}*"):
                if time.time() - path.stat().st_mtime >= older_than_seconds:
                    path.unlink(missing_ok=True)
                    count += 1
        except FileNotFoundError:
            pass  # its writer has just finished
        except OSError as error:
            self._refuse("", error)
        return count

    def close(self) -> None:
        """See `ObjectStore.close`; a folder holds nothing open."""

    def _refuse(self, key: str, error: OSError) -> NoReturn:
        raise SurroundingsError(f"{self.uri}/{key}: {disk_advice(error)}") from error


def _sync_folders(path: Path, top: Path) -> None:
    """Make the new name durable: sync its folder, and those above it up to the store's parent."""
    while True:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if path in (top, path.parent):
            return
        path = path.parent
