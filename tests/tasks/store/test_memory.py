"""What a finished batch takes in memory until it is committed: a few times its ids, never more."""

import asyncio
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np

from deployments.local.seaweed import Seaweed
from tasks.ledger.batch import Batch
from tasks.ledger.journal import Journal
from tasks.ledger.ledger import Ledger
from tasks.rows.records import Completion
from tasks.run.limits import ByteGate
from tasks.run.memory import give_back
from tasks.run.run import FINISHING_BYTES
from tests.support.small_jobs import checked_batch, receipt_of

MEGABYTES = 64
BATCHES = 8
TIMES = 6.0
"""Bytes in memory for each byte of the journal; `tasks.run.run.FINISHING_BYTES` counts on it."""


def run_child(script: str, seaweed: Seaweed) -> float:
    """Run a script that prints its memory, in bytes for each byte of a journal, in a process of its own."""
    where = {"AWS_ENDPOINT_URL_S3": seaweed.http_url, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-c", textwrap.dedent(script)]
    env = os.environ | seaweed.environment() | where
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return float(json.loads(done.stdout)["times"])


def filled(folder: Path, number: int) -> Journal:
    """Return a journal of 16 rows of 1 MB."""
    dice = np.random.default_rng(number)
    journal = Journal.open(folder, "job", Batch(number, 16 * number, 16 * number + 16, "f" * 64, ()), "run")
    for row in range(16):
        ids = dice.integers(0, 2**17, 2**18, dtype=np.int32)
        journal.append(Completion(f"s:{row}#t0~s0", ids[:1000], ids[1000:], "stop", 1))
    journal.flush()
    return journal


def finished(ledger: Ledger, journal: Journal, number: int) -> None:
    """Read a batch back, encode and upload it, as the last steps do."""
    done = tuple(journal.completions([f"s:{row}#t0~s0" for row in range(16)]))
    batch = Batch(number, 16 * number, 16 * number + 16, "f" * 64, ())
    receipt_of(ledger, batch, checked_batch(number, done))
    journal.close()
    del done
    give_back()


def test_memory_of_a_large_batch(tmp_path: Path, seaweed: Seaweed) -> None:
    """A batch of 64 MB is read back, encoded and uploaded in parts: peak memory is bounded."""
    child = f"""
        import json, resource
        from pathlib import Path
        import numpy as np
        from tasks.rows.records import Completion
        from tasks.job.spec import StoreSpec
        from tasks.store import s3 as s3_store
        from tasks.ledger.journal import Journal
        from tasks.ledger.ledger import Ledger
        from tasks.ledger.batch import Batch
        from tasks.store.opening import open_store
        from tests.support.small_jobs import checked_batch, receipt_of

        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

        s3_store.LARGEST_SINGLE_PUT = 16 * 2**20
        store = open_store(StoreSpec(uri="s3://{seaweed.bucket}/memory", region="us-east-1"))
        store.put("k.json", b"1")
        batch = Batch(0, 0, 64, "f" * 64, ())
        dice = np.random.default_rng(0)
        rows = {MEGABYTES}
        with Journal.open(Path({str(tmp_path / "j")!r}), "job", batch, "run") as journal:
            for row in range(rows):
                ids = dice.integers(0, 2**17, 2**18, dtype=np.int32)
                journal.append(Completion(f"s:{{row}}#t0~s0", ids[:1000], ids[1000:], "stop", 1))
            journal.flush()
            before, size = peak(), journal.size
            done = tuple(journal.completions([f"s:{{row}}#t0~s0" for row in range(rows)]))
            receipt = receipt_of(Ledger(store, "job"), batch, checked_batch(0, done))
        assert receipt.shard.bytes > s3_store.LARGEST_SINGLE_PUT
        print(json.dumps({{"times": (peak() - before) * 2**20 / size}}))
    """
    assert run_child(child, seaweed) <= TIMES


async def test_finished_batches_take_turns() -> None:
    """Batches are finished side by side within the limit; one that is larger waits until it is alone."""
    gate, inside, most = ByteGate(FINISHING_BYTES), [0], [0]

    async def finish(size: int) -> None:
        async with gate.hold(size):
            inside[0] += size
            most[0] = max(most[0], inside[0])
            await asyncio.sleep(0)
            inside[0] -= size

    half = FINISHING_BYTES // 2
    await asyncio.gather(*(finish(half) for _ in range(6)))
    assert most == [2 * half]
    await asyncio.gather(finish(3 * half), finish(half), finish(3 * half))
    assert most == [3 * half]
    assert inside == [0]


def test_memory_of_many_batches_that_end_at_once(tmp_path: Path, seaweed: Seaweed) -> None:
    """Batches of 16 MB end together, two may be finished at a time: seven at once would take more."""
    child = f"""
        import asyncio, json
        from pathlib import Path
        from tasks.run.limits import ByteGate
        from tasks.job.spec import StoreSpec
        from tasks.ledger.ledger import Ledger
        from tasks.store.opening import open_store
        from tests.bench.ledger import peak_mb
        from tests.tasks.store.test_memory import filled, finished

        ledger = Ledger(open_store(StoreSpec(uri="s3://{seaweed.bucket}/many", region="us-east-1")), "job")
        journals = [filled(Path({str(tmp_path)!r}) / str(number), number) for number in range({BATCHES})]
        gate = ByteGate(2 * journals[0].size)

        async def finish(journal, number):
            async with gate.hold(journal.size):
                await asyncio.to_thread(finished, ledger, journal, number)

        async def finish_all():
            await asyncio.gather(*(finish(journals[number], number) for number in range(1, {BATCHES})))

        finished(ledger, journals[0], 0)
        before = peak_mb()
        asyncio.run(finish_all())
        print(json.dumps({{"times": (peak_mb() - before) * 2**20 / journals[0].size}}))
    """
    assert run_child(child, seaweed) <= 2 * TIMES
