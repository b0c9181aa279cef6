"""Orphans: only what no receipt lists, only when old enough, never what a receipt needs."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.audit.orphans import DAY_SECONDS, collect_orphans, find_orphans
from tasks.audit.reread import audit
from tasks.errors import DataError
from tasks.store.contract import ObjectStore, put_content
from tasks.store.opening import open_store

LOST = [f"{folder}/{'ab' * 32}.parquet" for folder in ("shards", "rejected", "provenance", "frequencies")]


@pytest.fixture
def littered(
    store: ObjectStore, tmp_path: Path, prompts: Callable[..., Path], kit: Any
) -> tuple[ObjectStore, str]:
    """A finished job with four files that no receipt lists, and its id."""
    ledger = kit.run_job(store, kit.job_spec(tmp_path, str(prompts())))
    for key in LOST:
        store.put(key, b"lost a race")
    return store, ledger.job_id


def test_young_orphans_stay(littered: tuple[ObjectStore, str]) -> None:
    """What is younger than a day may be about to be committed: it is listed and left."""
    store, job_id = littered
    assert collect_orphans(store, job_id) == ([], LOST)
    assert sorted(info.key for info in find_orphans(store, job_id)) == sorted(LOST)


def test_old_orphans_go(littered: tuple[ObjectStore, str], kit: Any) -> None:
    """Old enough, they are deleted, everything else stays, and the audit is content."""
    store, job_id = littered
    before = {info.key for info in store.list("")}
    deleted, young = collect_orphans(store, job_id, older_than_seconds=0.0)
    assert (deleted, young) == (sorted(LOST), [])
    assert {info.key for info in store.list("")} == before - set(LOST)
    assert audit(store, kit.row_check).trainable


def test_the_age_is_the_file_s(tmp_path: Path, prompts: Callable[..., Path], kit: Any) -> None:
    """Of two orphans only the one that is older than a day goes."""
    spec = kit.job_spec(tmp_path, str(prompts()))
    store = open_store(spec.store, spec.job_id)
    kit.run_job(store, spec)
    for key in LOST[:2]:
        store.put(key, b"lost a race")
    yesterday = time.time() - DAY_SECONDS - 60
    os.utime(tmp_path / "store" / spec.job_id / LOST[0], (yesterday, yesterday))
    assert collect_orphans(store, spec.job_id) == ([LOST[0]], [LOST[1]])


def test_nothing_goes_when_a_receipt_is_unreadable(littered: tuple[ObjectStore, str]) -> None:
    """Without every receipt nobody knows what is an orphan."""
    store, job_id = littered
    store.put("receipts/000001.g0.json", b"{")
    with pytest.raises(DataError, match=r"receipts/000001\.g0\.json"):
        collect_orphans(store, job_id, older_than_seconds=0.0)
    assert {info.key for info in store.list("shards/")} >= {LOST[0]}


def test_what_a_batch_takes_up_again_is_not_collected(
    littered: tuple[ObjectStore, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old file that is put once more between the listing and the deletion is young, and stays."""
    store, job_id = littered
    if store.uri.startswith("s3://"):
        return  # the age of an object there cannot be set
    for key in LOST[:2]:
        for path in tmp_path.rglob(key):
            os.utime(path, (1, 1))
    listed, listings = type(store).list, iter([0, 1])

    def then_put(self: ObjectStore, prefix: str) -> Any:
        yield from listed(self, prefix)
        if prefix == "frequencies/" and next(listings, None) == 1:  # the second listing is over
            put_content(store, LOST[0], b"lost a race")

    monkeypatch.setattr(type(store), "list", then_put)
    assert collect_orphans(store, job_id)[0] == [LOST[1]]
    assert store.get(LOST[0]) == b"lost a race"
