"""Start a server again that this run had started itself and that has ended since.

Only with `servers.restart_crashed`: from outside a crash cannot be told from a person's `kill`, because
SGLang ends itself with SIGKILL in both cases. Only what this run started: its command line and environment
are in memory and nowhere else (they hold secrets), and no supervisor waits to start it. Any other server that
goes away is waited for.
"""

from contextlib import nullcontext

from tasks.sglang.client import ServerClient
from tasks.sglang.restart.lock import restart_lock
from tasks.sglang.restart.process import ServerProcess, place_of
from tasks.sglang.restart.restart import Restarted, stop_and_start, wait_started
from tasks.sglang.restart.stop import is_gone
from tasks.sglang.settings import FleetSettings, Say, unchecked


async def revive(
    client: ServerClient, server: ServerProcess, settings: FleetSettings, say: Say
) -> Restarted | None:
    """Start a server again if it has ended; None when it lives, or something else listens on its port.

    What it left of its process group is ended first: orphaned workers hold memory.

    Raises:
        SurroundingsError: remnants do not end, or it does not come back; carries the end of its log.
        LaterError: another run took the lock over.
    """
    ready_seconds = settings.servers.ready_timeout_seconds
    lock = settings.lock(place_of(client.url)) if settings.lock else nullcontext(unchecked)
    async with lock as still_ours, restart_lock(client.url, ready_seconds):
        if not is_gone(server):
            return None
        await still_ours()
        say(f"{client.url}: process {server.pid} has ended: starting {server.command}")
        started = await stop_and_start(server, server.argv, 0.0, settings.log_dir)
        return await wait_started(client, started, ready_seconds)
