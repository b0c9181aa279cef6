"""An event loop whose clock a test moves: what would take minutes passes at once."""

import asyncio


class HeldLoop(asyncio.SelectorEventLoop):
    """A test moves its clock; sleeps, timers and time limits of asyncio and aiohttp follow."""

    def __init__(self) -> None:
        self._ahead = 0.0
        super().__init__()

    def time(self) -> float:
        """Return the real monotonic seconds and what the clock was moved by."""
        return super().time() + self._ahead

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass at once: everything that waits for them is due."""
        self._ahead += seconds
