"""Objects that are written piece by piece, for files too large to be held in memory."""

import hashlib
from collections.abc import Callable
from typing import Any, BinaryIO, NoReturn


class NewObject:
    """An object that appears whole under its key when it is published, and not before.

    It is a binary file for whoever writes into it. `close` and `flush` do nothing: a writer that closes what
    it writes into does not end the object.

    Args:
        file: where the bytes are gathered.
        publish: makes the object of that file, given its sha256 in hex.
        discard: removes what `file` left on the disk.
        refuse: raises what a person can do about a failed file call.
    """

    closed = False
    """pyarrow asks."""

    def __init__(
        self,
        file: BinaryIO,
        publish: Callable[[str], None],
        discard: Callable[[], None],
        refuse: Callable[[OSError], NoReturn],
    ) -> None:
        self._file = file
        self._publish = publish
        self._discard = discard
        self._refuse = refuse
        self._sha = hashlib.sha256()
        self.size = 0

    def write(self, data: Any) -> int:
        """Write bytes; return how many."""
        view = memoryview(data).cast("B")
        self._sha.update(view)
        try:
            self._file.write(view)
        except OSError as error:
            self._refuse(error)
        self.size += len(view)
        return len(view)

    def flush(self) -> None:
        """See the class."""

    def close(self) -> None:
        """See the class."""

    def publish(self) -> str:
        """Make the object durable under its key, in place of what was there; return its sha256 in hex."""
        sha256 = self._sha.hexdigest()
        try:
            self._file.flush()
            self._publish(sha256)
            self._file.close()
        except OSError as error:
            self._refuse(error)
        return sha256

    def discard(self) -> None:
        """Give the object up."""
        self._file.close()
        self._discard()
