"""Leases and journal copies: one worker a batch; a dead one's work goes on elsewhere."""

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import pytest

from tasks.audit.reread import audit
from tasks.errors import LaterError, StalledError, SurroundingsError, TakenError
from tasks.job.spec import JobSpec, StoreSpec
from tasks.ledger.batch import Batch
from tasks.ledger.fence import Leases, home_of
from tasks.ledger.journal import Journal
from tasks.ledger.keeper import Keeper
from tasks.ledger.ledger import Ledger
from tasks.ledger.receipt import unit_name
from tasks.prompts.opening import open_sources
from tasks.prompts.plan_batches import extend_plan
from tasks.rows.records import Completion, as_ids
from tasks.store.contract import ObjectStore, canonical, sha256_hex
from tasks.store.opening import open_store

BATCH = Batch(3, 30, 40, "f" * 64, ())
SILENCE = 2.0
"""S3 tells times in whole seconds."""


def answer(number: int) -> Completion:
    """Return a made-up finished row."""
    return Completion(f"s:{number}#t0~s0", as_ids([1]), as_ids([2, number]), "stop", number)


def test_one_worker_a_batch(store: ObjectStore) -> None:
    """The second worker is told who has it; once released it may have it, under the next number."""
    one, two = Leases(store, "one", "here"), Leases(store, "two", "there")
    assert one.take("000003", holds_journal=True) is None
    assert one.take("000003", holds_journal=True) is None
    assert two.take("000003", holds_journal=True) == "one"
    assert two.take("000004", holds_journal=True) is None
    one.release("000003")
    assert two.take("000003", holds_journal=True) is None
    assert two.held == {"000004": 1, "000003": 2}
    two.check("000003")
    two.drop("000003")
    assert [info.key for info in store.list("leases/000003/")] == []


def test_one_of_many_workers_wins(store: ObjectStore) -> None:
    """Six workers ask at once: one gets it, the others learn its name."""
    workers = [Leases(store, f"worker-{n}", f"home-{n}") for n in range(6)]
    told: list[str | None] = []
    barrier = threading.Barrier(6)

    def ask(worker: Leases) -> None:
        worker.beat()
        barrier.wait()
        told.append(worker.take("000007", holds_journal=True))

    threads = [threading.Thread(target=ask, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [worker for worker in workers if worker.held]
    assert told.count(None) == 1
    assert set(told) == {None, winner.run}


def test_a_silent_worker_is_taken_over(store: ObjectStore) -> None:
    """A worker that does not show itself loses its batch, and learns it before it commits."""
    silent, other = Leases(store, "silent", "here", SILENCE), Leases(store, "other", "there", SILENCE)
    silent.take("000003", holds_journal=True)
    assert other.take("000003", holds_journal=True) == "silent"
    deadline = time.monotonic() + 4 * SILENCE
    while other.take("000003", holds_journal=True) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.1)  # waiting for the silence itself
    with pytest.raises(LaterError, match="got worker other with fencing number 2"):
        silent.check("000003")
    other.check("000003")


def test_a_worker_that_beats_keeps_its_batch(store: ObjectStore) -> None:
    """Signs of life keep a lease for longer than the silence that would end it."""
    busy, other = Leases(store, "busy", "here", SILENCE), Leases(store, "other", "there", SILENCE)
    busy.take("000003", holds_journal=True)
    for _ in range(4):
        time.sleep(SILENCE / 2)
        busy.beat()
        assert other.take("000003", holds_journal=True) == "busy"


def test_a_dead_worker_of_this_home_is_not_waited_for(store: ObjectStore) -> None:
    """Who holds the local journal knows that the former worker of this machine is gone."""
    Leases(store, "killed", "here").take("000003", holds_journal=True)
    assert Leases(store, "again", "here").take("000003", holds_journal=False) == "killed"
    assert Leases(store, "again", "here").take("000003", holds_journal=True) is None


def test_home_lasts(tmp_path: Path) -> None:
    """A folder of journals keeps its name; another has another."""
    assert home_of(tmp_path / "a") == home_of(tmp_path / "a") != home_of(tmp_path / "b")


def test_another_machine_goes_on(store: ObjectStore, tmp_path: Path) -> None:
    """A machine dies in the middle: what it had copied is there on the next one, in spite of a torn copy."""
    first = Keeper(store, tmp_path / "one", "first", upload_seconds=0.05, lease_seconds=SILENCE)
    with first:
        journal = first.open_journal("job", BATCH)
        for number in range(5):
            journal.append(answer(number))
            journal.flush()
            time.sleep(0.06)  # several intervals, so that there are several chunks
        deadline = time.monotonic() + 10
        copied = "journals/000003/first-0/"
        while sum(info.size for info in store.list(copied)) < journal.written()[1]:
            assert time.monotonic() < deadline
            time.sleep(0.05)  # waiting for another thread's copy
        chunks = [info.key for info in store.list(copied)]
        assert len(chunks) > 1
        journal.close()  # stands for the machine's end: no release, no goodbye
        first._copies.clear()
        first._leases.held.clear()
    store.put(chunks[-1], store.get(chunks[-1])[:-3])
    with Keeper(store, tmp_path / "two", "second", upload_seconds=60.0, lease_seconds=SILENCE) as second:
        journal = second.open_journal("job", BATCH)
        assert sorted(journal.done) == [f"s:{number}#t0~s0" for number in range(4)]
        assert journal.get("s:2#t0~s0").output_ids.tolist() == [2, 2]
        journal.append(answer(4))
        second.check("000003")
        second.committed("000003", journal)
        assert [info.key for info in store.list("journals/")] == []
        assert [info.key for info in store.list("leases/")] == []
    assert [info.key for info in store.list("workers/")] == []


def test_a_copy_that_the_disk_refuses_ends_no_signs_of_life(
    store: ObjectStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One journal's part cannot be read for a while: told once, all else goes on, and then it is copied."""
    with Keeper(store, tmp_path, "run", upload_seconds=0.05, lease_seconds=0.3) as keeper:
        journals = [keeper.open_journal("job", batch) for batch in (BATCH, attrs.evolve(BATCH, index=4))]
        part, aside = journals[0].written()[0], tmp_path / "aside"
        part.rename(aside)
        for journal in journals:
            journal.append(answer(1))
            journal.flush()
        until(lambda: bool(caplog.records))
        sign = store.get("workers/run.json")
        until(lambda: store.get("workers/run.json") != sign)
        until(lambda: copied(store, "000004") == journals[1].written()[1])
        aside.rename(part)
        until(lambda: copied(store, "000003") == journals[0].written()[1])
    (record,) = caplog.records
    assert f"{part}: No such file" in record.getMessage()
    assert list(store.list("workers/")) == []


def test_a_run_whose_last_copy_fails_lets_go_of_its_leases(store: ObjectStore, tmp_path: Path) -> None:
    """The disk refuses at the end of a run: named where a batch is closed, and no lease stays behind."""
    with Keeper(store, tmp_path, "run", upload_seconds=3600.0) as keeper:
        for index in (3, 4):
            journal = keeper.open_journal("job", attrs.evolve(BATCH, index=index))
            journal.append(answer(1))
            journal.flush()
            journal.written()[0].unlink()
            if index == 3:
                with pytest.raises(SurroundingsError, match=r"000003/run-0.journal: No such file"):
                    keeper.close_journal("000003", journal)
    journal.close()
    assert b"released" in store.get("leases/000003/000001.json")
    assert b"released" in store.get("leases/000004/000001.json")
    assert list(store.list("workers/")) == []


def copied(store: ObjectStore, unit: str) -> int:
    """Return how many bytes of a batch's journal the store has."""
    return sum(info.size for info in store.list(f"journals/{unit}/"))


def until(reached: Callable[[], bool]) -> None:
    """Return when the keeper's thread has done something: it is looked for in the store."""
    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)  # between two looks


def test_a_living_worker_is_named(store: ObjectStore, tmp_path: Path) -> None:
    """A batch of another machine is left to it, and one of another process of this machine as well."""
    with (
        Keeper(store, tmp_path / "one", "first") as first,
        Keeper(store, tmp_path / "two", "second") as second,
        Keeper(store, tmp_path / "one", "third") as third,
    ):
        journal = first.open_journal("job", BATCH)
        with pytest.raises(LaterError, match="batch 000003: worker first has it and lives"):
            second.open_journal("job", BATCH)
        with pytest.raises(TakenError, match=rf"first has it and lives.*process {os.getpid()}"):
            third.open_journal("job", BATCH)
        first.close_journal("000003", journal)
        journal = second.open_journal("job", BATCH)
        second.close_journal("000003", journal)


@pytest.mark.parametrize("sign", ["none", "old"])
def test_a_stalled_worker_of_this_machine_is_not_waited_for_without_limit(tmp_path: Path, sign: str) -> None:
    """It keeps the journal and does not show itself: told for three leases, then its batch alone fails."""
    store, lease = open_store(StoreSpec(uri=str(tmp_path / "store")), "job"), 0.2
    if sign == "old":
        Leases(store, "stalled", "here").take("000003", holds_journal=True)
    stalled = Journal.open(tmp_path / "000003", "job", BATCH, "stalled")
    with stalled, Keeper(store, tmp_path, "next", lease_seconds=lease) as other:
        begun, told = time.monotonic(), list[str]()
        while True:
            try:
                other.open_journal("job", BATCH)
            except TakenError as error:
                told.append(str(error))
            except StalledError as error:
                told.append(str(error))
                break
            time.sleep(0.02)  # waiting for the silence itself
        assert time.monotonic() - begun > 3 * lease
        assert f"process {os.getpid()}" in told[-1]
        assert told[-1].endswith(f"was waited for {3 * lease:.0f} s: end it, then run again")
        journal = other.open_journal("job", attrs.evolve(BATCH, index=4))
        other.close_journal("000004", journal)


def test_unfinished_work_is_copied_when_a_run_stops(store: ObjectStore, tmp_path: Path) -> None:
    """A run that is stopped in good order leaves everything for the next machine."""
    with Keeper(store, tmp_path / "one", "first", upload_seconds=3600.0) as keeper:
        journal = keeper.open_journal("job", BATCH)
        journal.append(answer(1))
        keeper.close_journal("000003", journal)
    with Keeper(store, tmp_path / "two", "second") as keeper:
        journal = keeper.open_journal("job", BATCH)
        assert list(journal.done) == ["s:1#t0~s0"]
        keeper.committed("000003", journal)


def test_leftovers_of_committed_batches_are_swept(store: ObjectStore, tmp_path: Path) -> None:
    """Copies and leases that a crash left behind a receipt are removed; those of open batches stay."""
    for name in ("000003", "000004"):
        store.put(f"journals/{name}/x-0/000000.part", b"x")
        store.put(f"leases/{name}/000001.json", b"{}")
    with Keeper(store, tmp_path, "run") as keeper:
        keeper.sweep({3: 0})
    assert [info.key.split("/")[1] for info in store.list("journals/")] == ["000004"]
    assert [info.key.split("/")[1] for info in store.list("leases/")] == ["000004"]


def work(store: ObjectStore, spec: JobSpec, kit: Any, root: Path, made: list[str]) -> None:
    """Do what a worker does until nothing is pending; note every row that it makes."""
    ledger = Ledger(store, spec.job_id)
    ledger.open_job(spec, kit.resolved)
    sources = open_sources(spec.prompts)
    plan = extend_plan(ledger, sources, spec, sha256_hex(canonical(kit.resolved)))
    with Keeper(store, root, root.name) as keeper:
        while pending := ledger.pending(plan):
            for batch in pending:
                try:
                    journal = keeper.open_journal(spec.job_id, batch)
                except LaterError:
                    continue
                rows = [kit.completion_of(record, 0) for record in sources.read(batch)]
                for row in rows:
                    made.append(row.row_id)
                    journal.append(row)
                keeper.check(unit_name(batch.index, 0))
                ledger.commit(kit.receipt_of(ledger, batch, kit.checked_batch(batch.index, rows)))
                keeper.committed(unit_name(batch.index, 0), journal)


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_share_a_job(
    store: ObjectStore, tmp_path: Path, prompts: Callable[..., Path], kit: Any, workers: int
) -> None:
    """Several machines on one job: one receipt a batch, no row made twice, the audit is content."""
    spec = kit.job_spec(tmp_path, str(prompts(rows=40)), batch={"rows": 5})
    made: list[str] = []
    with ThreadPoolExecutor(workers) as pool:
        for done in [
            pool.submit(work, store, spec, kit, tmp_path / f"run-{n}", made) for n in range(workers)
        ]:
            done.result()
    assert len(made) == len(set(made)) == 40
    report = audit(store, kit.row_check)
    assert report.trainable, report.reason
    assert report.batches == {"planned": 8, "committed": 8}
