"""This host's lock for the restart of one server."""

import asyncio
import fcntl
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tasks.errors import SurroundingsError
from tasks.sglang.clock import loop_seconds


@asynccontextmanager
async def restart_lock(url: str, seconds: float) -> AsyncIterator[None]:
    """Hold this host's lock for one server; the kernel drops it when its holder dies."""
    name = "".join(c if c.isalnum() else "-" for c in url.partition("://")[2])
    path = Path(tempfile.gettempdir()) / f"rawseq-restart-{os.getuid()}-{name}.lock"
    deadline = loop_seconds() + seconds
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if loop_seconds() > deadline:
                    raise SurroundingsError(
                        f"{url}: another run is restarting it for {seconds:.0f} s"
                    ) from None
                await asyncio.sleep(0.2)
        yield
