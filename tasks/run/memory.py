"""Memory that was freed goes back to the system: else every thread keeps what its largest batch once took."""

import ctypes
import sys

import pyarrow as pa

_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
"""glibc's; musl and others give memory back by themselves, or not at all."""


def give_back() -> None:
    """Return what pyarrow's pool and malloc's arenas hold unused; takes a few milliseconds."""
    pa.default_memory_pool().release_unused()
    if _TRIM is not None:
        _TRIM(0)
