"""The clock of servers and fleets: the running event loop's own.

Sleeps, timers and time limits of asyncio and aiohttp follow it too, so a test that holds the loop's clock
holds all of them; no duration is taken from one clock and waited for on another.
"""

import asyncio


def loop_seconds() -> float:
    """Return the running loop's monotonic seconds (of uvloop: whole milliseconds)."""
    return asyncio.get_running_loop().time()
