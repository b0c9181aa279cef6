"""How much may be in memory at once: a gate that counts bytes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ByteGate:
    """Lets holders in while what they hold together stays within a limit; a single one always gets in.

    Args:
        limit: bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def hold(self, size: int) -> AsyncIterator[None]:
        """Wait for room, and hold `size` bytes for as long as the body runs."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._held or self._held + size <= self._limit)
            self._held += size
        try:
            yield
        finally:
            async with self._changed:
                self._held -= size
                self._changed.notify_all()
