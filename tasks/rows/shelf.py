"""Records that are too many for memory, in a temporary file: 16 bytes of memory for each."""

import tempfile
import threading
import weakref
from array import array
from collections.abc import Iterable

from tasks.errors import SurroundingsError
from tasks.store.disk import disk_advice


class Shelf:
    """A temporary file that only grows. Safe for threads; it vanishes with the last who knows it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._end = 0
        try:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - the finalizer closes it
        except OSError as error:
            raise _refused(error) from error
        weakref.finalize(self, self._file.close)

    def put(self, record: bytes) -> tuple[int, int]:
        """Append a record; return its first byte and its length.

        Raises:
            SurroundingsError: the temporary folder takes no more.
        """
        with self._lock:
            place = self._end, len(record)
            try:
                self._file.seek(self._end)
                left = memoryview(record)
                while left:
                    left = left[self._file.write(left) :]
            except OSError as error:
                raise _refused(error) from error
            self._end += len(record)
        return place

    def get(self, offset: int, length: int) -> bytes:
        """Return a record; raises as `put`."""
        with self._lock:
            try:
                self._file.seek(offset)
                return self._file.read(length)
            except OSError as error:
                raise _refused(error) from error


class Shelved:
    """Numbered records on a shelf. It is never changed: what is made of it shares the shelf.

    Args:
        shelf: where they lie; None: a new one.
        places: uint64[2n]: first byte and length of each.
    """

    def __init__(self, shelf: Shelf | None = None, places: "array[int] | None" = None) -> None:
        self.shelf = shelf or Shelf()
        self._places = array("Q") if places is None else places

    def __len__(self) -> int:
        return len(self._places) // 2

    def record(self, number: int) -> bytes:
        """Return one record.

        Raises:
            IndexError: there is none of that number.
        """
        if not 0 <= number < len(self):
            raise IndexError(number)
        return self.shelf.get(self._places[2 * number], self._places[2 * number + 1])

    def with_more(self, records: Iterable[bytes]) -> "Shelved":
        """Return these and then `records`, which are taken one at a time."""
        places = self._places[:]
        for record in records:
            places.extend(self.shelf.put(record))
        return Shelved(self.shelf, places)

    def chosen(self, numbers: Iterable[int]) -> "Shelved":
        """Return the records of these numbers, in their order."""
        places = array("Q")
        for number in numbers:
            places.extend(self._places[2 * number : 2 * number + 2])
        return Shelved(self.shelf, places)


def _refused(error: OSError) -> SurroundingsError:
    return SurroundingsError(f"temporary folder {tempfile.gettempdir()}: {disk_advice(error)}")
