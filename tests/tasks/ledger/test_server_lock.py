"""The lock of a server: one holder, a dead one's lapses, a late one learns that it has lost it."""

import asyncio
import threading
import time
from pathlib import Path

import pytest

from deployments.local.seaweed import Seaweed
from tasks.errors import LaterError, SurroundingsError
from tasks.job.spec import StoreSpec
from tasks.ledger.fence import Leases
from tasks.ledger.server_lock import ServerLock, hold_server, server_locks
from tasks.store.contract import ObjectStore
from tasks.store.opening import open_store
from tests.support.fault_proxy import Fault, FaultProxy

SILENCE = 2.0
"""S3 tells times in whole seconds."""


def test_one_run_holds_a_server(store: ObjectStore) -> None:
    """The second learns who has it; after the release it gets the next number, and nothing else stays."""
    one, two = ServerLock(store, "gpu1-30000", "one"), ServerLock(store, "gpu1-30000", "two")
    other = ServerLock(store, "gpu1-30001", "two")
    assert (one.take(), two.take(), other.take()) == (None, "one", None)
    one.beat()
    one.check()
    one.release()
    assert (two.take(), two.fence, one.fence) == (None, 2, 0)
    with pytest.raises(LaterError, match="got two with 2"):
        one.check()
    one.release()  # changes nothing
    two.check()
    two.release()
    assert [info.key for info in store.list("server-locks/gpu1-30000/")] == [
        "server-locks/gpu1-30000/000002.json"
    ]


def test_one_of_many_gets_it(store: ObjectStore) -> None:
    """Six ask at once: one gets it."""
    locks = [ServerLock(store, "s", f"run-{n}") for n in range(6)]
    barrier = threading.Barrier(6)

    def ask(lock: ServerLock) -> None:
        barrier.wait()
        lock.take()

    threads = [threading.Thread(target=ask, args=(lock,)) for lock in locks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [lock for lock in locks if lock.fence]
    winner.check()


def test_a_put_whose_answer_was_lost_is_its_own(seaweed: Seaweed, s3_spec: StoreSpec) -> None:
    """The retried put finds what the first one left: it is the holder's own, for a lock and for a lease."""
    lost = [Fault("lose_response", path="server-locks/"), Fault("lose_response", path="leases/")]
    with FaultProxy(seaweed.port, *lost) as proxy:
        spec = s3_spec.model_copy(update={"endpoint_url": proxy.url, "deadline_seconds": 20.0})
        store = open_store(spec, "job", seaweed.credentials)
        lock, leases = ServerLock(store, "s", "one"), Leases(store, "one", "here")
        assert (lock.take(), lock.fence) == (None, 1)
        lock.check()
        assert ServerLock(store, "s", "one").take() == "one"  # the same run's other claim is another's
        assert leases.take("000003", holds_journal=True) is None
        leases.check("000003")
        store.close()
    assert proxy.broken == 2


def test_the_lock_of_a_dead_run_lapses(store: ObjectStore) -> None:
    """A silent holder loses it by the store's clock; when it wakes it is told, and cannot take it back."""
    dead, next_ = ServerLock(store, "s", "dead", SILENCE), ServerLock(store, "s", "next", SILENCE)
    assert dead.take() is None
    deadline = time.monotonic() + 10 * SILENCE
    while next_.take() is not None:
        assert time.monotonic() < deadline
        time.sleep(0.2)  # time itself is what is tested
    assert next_.fence == 2
    with pytest.raises(LaterError, match="did not show itself"):
        dead.beat()
    dead.release()
    next_.check()


async def test_a_living_holder_keeps_it(tmp_path: Path) -> None:
    """It is renewed while the body runs, released at its end, and the waiting one has a limit."""
    spec = StoreSpec(uri=str(tmp_path))
    async with server_locks(spec, "one", 1.0)("s") as check:
        await check()
        with pytest.raises(SurroundingsError, match="run one is restarting it"):
            async with server_locks(spec, "two", 0.2)("s"):
                raise AssertionError
    async with server_locks(spec, "two", 1.0)("s") as check:
        await check()


async def test_a_busy_holder_does_not_lose_it(store: ObjectStore) -> None:
    """The body blocks the event loop for longer than a silence: the lock is renewed all the same."""
    lock = ServerLock(store, "s", "one", 1.5 * SILENCE)
    async with hold_server(lock, 1.0) as check:
        time.sleep(2.5 * SILENCE)  # noqa: ASYNC251  blocking is what is tested
        await check()
    assert await asyncio.to_thread(ServerLock(store, "s", "two").take) is None
