"""The right to restart one server, across hosts and jobs: a lease in the store.

`<store.uri>/server-locks/<server>/<fence>.json` lies beside the jobs: jobs that share a server share it.
Each holder has the next fencing number and rewrites its object while it lives; when it is silent for
`LOCK_SECONDS` by the store's clock, the lock has lapsed. The server itself cannot check a fencing number, so
the holder asks whether the lock is still its own right before it stops the server.
"""

import asyncio
import functools
import logging
import secrets
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

import attrs
import orjson

from tasks.errors import LaterError, RawseqError, SurroundingsError
from tasks.job.spec import SCHEMA_VERSION, StoreSpec
from tasks.store.contract import MissingError, ObjectStore, canonical
from tasks.store.probe import prepare_store

LOCK_SECONDS: Final = 60.0
"""A holder that was silent for so long is taken for dead; it shows itself three times as often."""

Check = Callable[[], Awaitable[None]]
"""Raises `LaterError` when the lock is not the caller's any more."""

_LOG = logging.getLogger("rawseq.server_lock")


@attrs.define(slots=True, eq=False)
class ServerLock:
    """One run's claim on one server. Its methods block.

    Args:
        store: what the lock lies in.
        server: name of the server, a plain key segment.
        run: name of the run, for the others.
        seconds: after how much silence a holder is taken for dead.
        fence: fencing number while it is held, else 0.
    """

    store: ObjectStore
    server: str
    run: str
    seconds: float = LOCK_SECONDS
    fence: int = 0
    _token: str = attrs.field(factory=lambda: secrets.token_hex(8))
    _beats: int = 0

    def take(self) -> str | None:
        """Take the lock; return None when it is ours, else the name of the living run that holds it.

        A put whose answer was lost is made again and finds what the first one left: the token tells it.
        """
        while True:
            fence, holder = self._last()
            if holder is not None and holder["token"] == self._token:
                self.fence = fence
                return None
            if holder is not None:
                return str(holder["run"])
            if self.store.put(self._key(fence + 1), self._data(fence + 1), create_only=True):
                self.fence = fence + 1
                return None

    def check(self) -> None:
        """Make sure that the lock is still ours.

        Raises:
            LaterError: it lapsed, or another run has it: ask for it again.
        """
        fence, holder = self._last()
        if not self.fence or fence != self.fence or holder is None or holder["token"] != self._token:
            expected, self.fence = self.fence, 0
            raise LaterError(
                f"{self.store.uri}: the lock of {self.server}: expected to hold it with fencing number "
                f"{expected}, got {holder and holder['run']} with {fence}: this run did not show itself for "
                f"{self.seconds:.0f} s"
            )

    def beat(self) -> None:
        """Show that its holder lives; raises as `check`."""
        self.check()
        self._beats += 1
        self.store.put(self._key(self.fence), self._data(self.fence))

    def release(self) -> None:
        """Let go of it; its last number stays, so that the next holder has a higher one."""
        fence, holder = self._last()
        mine, self.fence = self.fence, 0
        if not mine or fence != mine or holder is None or holder["token"] != self._token:
            return
        self.store.put(self._key(mine), self._data(mine, released=True))
        for info in list(self.store.list(self._key(0).removesuffix("000000.json"))):
            if info.key < self._key(mine):
                self.store.delete(info.key)

    def keep(self, ended: threading.Event) -> None:
        """Beat until `ended`; an outage of the store is told, and what follows is for `check` to find."""
        while not ended.wait(self.seconds / 3):
            try:
                self.beat()
            except (RawseqError, OSError) as error:  # this thread's end would be the end of the lock
                _LOG.warning("could not renew the lock of %s: %s", self.server, error)

    def _last(self) -> tuple[int, dict[str, object] | None]:
        """Return the highest fencing number and what its living holder wrote, None when there is none."""
        found = list(self.store.list(self._key(0).removesuffix("000000.json")))
        if not found:
            return 0, None
        last = max(found, key=lambda info: info.key)
        try:
            data = orjson.loads(self.store.get(last.key))
        except MissingError:  # its successor has just removed it
            return self._last()
        alive = last.age <= self.seconds and not data.get("released")
        return int(data["fence"]), data if alive else None

    def _key(self, fence: int) -> str:
        return f"server-locks/{self.server}/{fence:06d}.json"

    def _data(self, fence: int, *, released: bool = False) -> bytes:
        data = {"schema": SCHEMA_VERSION, "server": self.server, "fence": fence, "run": self.run}
        data |= {"token": self._token, "beat": self._beats}
        return canonical(data | ({"released": True} if released else {}))


@asynccontextmanager
async def hold_server(lock: ServerLock, wait_seconds: float) -> AsyncIterator[Check]:
    """Hold a server's lock while the body runs, renewed from a thread of its own; yields its check.

    Raises:
        SurroundingsError: a living run still held it after `wait_seconds`.
    """
    deadline = time.monotonic() + wait_seconds
    while (holder := await asyncio.to_thread(lock.take)) is not None:
        if time.monotonic() > deadline:
            raise SurroundingsError(f"{lock.server}: run {holder} is restarting it for {wait_seconds:.0f} s")
        await asyncio.sleep(min(1.0, lock.seconds / 10))
    ended = threading.Event()
    keeper = threading.Thread(target=lock.keep, args=(ended,), name="rawseq-server-lock")
    keeper.start()
    try:
        yield functools.partial(asyncio.to_thread, lock.check)
    finally:
        ended.set()
        await asyncio.to_thread(_let_go, lock, keeper)


def _let_go(lock: ServerLock, keeper: threading.Thread) -> None:
    keeper.join()
    try:
        lock.release()
    except RawseqError as error:
        _LOG.warning("could not let go of the lock of %s: %s: it lapses by itself", lock.server, error)


def server_locks(
    spec: StoreSpec, run: str, wait_seconds: float, credentials: Mapping[str, str] | None = None
) -> Callable[[str], AbstractAsyncContextManager[Check]]:
    """Return what gives the lock of a server by its name; the store is opened when one is asked for.

    Args:
        spec: the job's store section; the locks lie beside the job, not in it.
        run: name of this run, for the others.
        wait_seconds: how long a living holder is waited for.
        credentials: S3 credentials of a Prefect block; None: the AWS chain.
    """

    @asynccontextmanager
    async def lock(server: str) -> AsyncIterator[Check]:
        store, _ = await asyncio.to_thread(prepare_store, spec, "", credentials)
        try:
            async with hold_server(ServerLock(store, server, run), wait_seconds) as check:
                yield check
        finally:
            await asyncio.to_thread(store.close)

    return lock
