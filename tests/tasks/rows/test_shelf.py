"""Plans and receipts of any size lie on a shelf: memory does not follow the number of batches."""

import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.dataset.damage import ListedFiles
from tasks.errors import SurroundingsError
from tasks.ledger.batch import Batch, Batches, Drop, Span
from tasks.ledger.ledger import Ledger
from tasks.ledger.plan import Plan, extended, plan_object
from tasks.ledger.receipt import Receipts
from tasks.rows.shelf import Shelf
from tasks.store.contract import ObjectStore

BYTES_EACH = 32
"""Memory that a batch or a receipt may take while it is known: its place, and its number."""

FIXED_BYTES = 2**17
PAGE_BYTES = 4 * 2**20


def batch(number: int) -> Batch:
    """Return a batch of ten records; every third drops one."""
    dropped = b'[["s",%d,"duplicate","s:0"]]' % number if number % 3 == 0 else b""
    spans = (Span("s", 1 + 10 * number, 10, 2000 * number),)
    return Batch(number, 10 * number, 10 * number + 10, f"{number:064x}", spans, number % 2 or None, dropped)


def batches(count: int, first: int = 0) -> Iterator[Batch]:
    """Yield so many batches."""
    return map(batch, range(first, first + count))


def kept_and_peak(make: Callable[[], object]) -> tuple[int, int]:
    """Return how many bytes `make` leaves in use, and how many were in use at once."""
    tracemalloc.start()
    try:
        made = make()
        found = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    del made
    return found


def test_batches_are_a_sequence() -> None:
    """They come back as they were, by number, from the end, in slices and chosen ones."""
    found = Batches().with_more(batches(7))
    assert list(found) == list(batches(7))
    assert found[-1] == batch(6)
    assert found[3].drops == (Drop("s", 3, "duplicate", "s:0"),)
    assert list(found[2:-2]) == list(batches(3, 2))
    assert list(found.chosen([5, 0])) == [batch(5), batch(0)]
    assert not Batches()
    for number in (7, -8):
        with pytest.raises(IndexError):
            found[number]


def test_what_is_made_of_batches_leaves_them_alone() -> None:
    """Two planners that go on from one plan each have their own, by many threads at once."""
    base = Batches().with_more(batches(5))
    made: dict[int, Batches] = {}

    def extend(first: int) -> None:
        made[first] = base.with_more(batches(300, first))

    threads = [threading.Thread(target=extend, args=(first,)) for first in (5, 1000, 2000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(base) == list(batches(5))
    for first, found in made.items():
        assert list(found) == [*batches(5), *batches(300, first)]
        assert found != base


def test_a_plan_takes_no_memory_for_its_batches() -> None:
    """5,000 batches in objects of 1,000: what is kept is their places, what passes is one object."""

    def read() -> Plan:
        plan = Plan("job")
        for sequence in range(5):
            data = plan_object("job", sequence, [("s", "s.jsonl")], list(batches(1000, 1000 * sequence)))
            data["batches"] = [item | {"dropped": []} for item in data["batches"]]
            plan = extended(plan, data, "plan")
        assert plan.records == 50_000
        return plan

    kept, peak = kept_and_peak(read)
    assert kept <= 5_000 * BYTES_EACH + FIXED_BYTES
    assert peak <= kept + PAGE_BYTES


def test_receipts_take_no_memory(tmp_path: Path, prompts: Any, kit: Any, store: ObjectStore) -> None:
    """They are a mapping by batch as before; thousands of them take their places alone."""
    ledger = kit.run_job(store, kit.job_spec(tmp_path, str(prompts(rows=25))))
    found = ledger.receipts()
    assert list(found) == [0, 1, 2]
    assert {number: receipt.as_json() for number, receipt in found.items()} == {
        receipt.batch: receipt.as_json() for receipt in ledger.iter_receipts()
    }
    assert found.get(3) is None
    receipt = found[0]
    kept, _ = kept_and_peak(lambda: Receipts(receipt for _ in range(5000)))
    assert kept <= 5_000 * BYTES_EACH + FIXED_BYTES


def test_lost_files_are_seen_in_a_listing(tmp_path: Path, prompts: Any, kit: Any, store: ObjectStore) -> None:
    """A file that is gone and one that is shorter, each by its kind; the other batches lack nothing."""
    ledger: Ledger = kit.run_job(store, kit.job_spec(tmp_path, str(prompts(rows=25))))
    first, second, third = ledger.receipts().values()
    assert first.shard is not None
    store.delete(first.shard.key)
    store.put(second.provenance.key, b"short")
    files = ListedFiles(store)
    assert [files.lacks(receipt) for receipt in (first, second, third)] == [["shard"], ["provenance"], []]


def test_a_full_temporary_folder_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the folder and what to do, like any other disk that is full."""
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **how: open("/dev/full", "r+b", **how))  # noqa: SIM115
    with pytest.raises(SurroundingsError, match=r"temporary folder .*: No space left .*: free space"):
        Shelf().put(b"1")
