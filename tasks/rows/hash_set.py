"""A set that takes 8 bytes for each of its items."""

from array import array
from collections.abc import Hashable, Iterable

import numpy as np
from numpy.typing import NDArray


class HashSet:
    """Remembers items by their 64-bit hash: what is in it is always found, what is not nearly never.

    Args:
        items: the first ones.
    """

    def __init__(self, items: Iterable[Hashable] = ()) -> None:
        self._hashes = array("q")
        self._sorted: NDArray[np.int64] | None = None
        self.update(items)

    def update(self, items: Iterable[Hashable]) -> None:
        """Add items."""
        self._hashes.extend(map(hash, items))
        self._sorted = None

    def __contains__(self, item: Hashable) -> bool:
        if self._sorted is None:
            self._sorted = np.sort(np.array(self._hashes, np.int64))
        place = int(np.searchsorted(self._sorted, hash(item)))
        return place < len(self._sorted) and bool(self._sorted[place] == hash(item))
