"""Whether a server works for somebody: asked before it is stopped."""

import asyncio
from typing import Final

from tasks.errors import ServerError, SurroundingsError
from tasks.sglang.client import ServerClient
from tasks.sglang.clock import loop_seconds

IDLE_LOOKS: Final = 2
"""So many looks in a row must show no work before a server counts as idle."""


class BusyError(SurroundingsError):
    """A server is left as it is, because it works for others."""


async def wait_idle(client: ServerClient, seconds: float, *, busy_too: bool = False) -> None:
    """Wait until a server has nothing in flight, at two looks in a row: its snapshot may be old.

    Raises:
        BusyError: after `seconds` it still works for somebody or does not say, and not `busy_too`.
    """
    deadline, looks = loop_seconds() + seconds, 0
    while True:
        try:
            loads = await client.loads()
        except ServerError as error:
            looks, seen = 0, f"its load cannot be read: {error}"
        else:
            if loads is None:
                return
            looks = looks + 1 if loads.running + loads.waiting == 0 else 0
            seen = f"it serves others ({loads.running} running, {loads.waiting} waiting)"
        if looks >= IDLE_LOOKS:
            return
        if loop_seconds() >= deadline and not looks:
            if busy_too:
                return
            raise BusyError(f"{client.url}: {seen} after {seconds:.0f} s: not restarted under them")
        await asyncio.sleep(0.5)
