"""The direct reader: every accepted row once over the ranks, the same each time, resumable anywhere."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.dataset.training_reader import TrainingRow, read_rows
from tasks.errors import DataError
from tasks.store.contract import ObjectStore


@pytest.fixture
def finished(store: ObjectStore, tmp_path: Path, prompts: Callable[..., Path], kit: Any) -> ObjectStore:
    """A finished job of seven batches."""
    kit.run_job(store, kit.job_spec(tmp_path, str(prompts(rows=65))))
    return store


def ids(store: ObjectStore, **options: Any) -> list[str]:
    """Return the row ids in reading order."""
    return [row.row_id for row in read_rows(store, **options)]


def test_rows_and_masks(finished: ObjectStore) -> None:
    """Ids come verbatim; the mask is False on the prompt and True behind it, as the segments say."""
    rows: list[TrainingRow] = list(read_rows(finished))
    assert rows
    for row in rows:
        prompt = next(segment.stop for segment in row.segments if segment.kind == "prompt")
        assert row.loss_mask.tolist() == [False] * prompt + [True] * (row.input_ids.size - prompt)
        assert row.verdict == "complete"


def test_source_order_without_a_seed(finished: ObjectStore) -> None:
    """Unshuffled, rows come in source order."""
    numbers = [int(row_id.split(":q")[1].split("#")[0]) for row_id in ids(finished)]
    assert numbers == sorted(numbers)


def test_ranks_share_the_rows(finished: ObjectStore) -> None:
    """Over the ranks every row comes once, shuffled or not."""
    everything = sorted(ids(finished))
    for seed in (None, 7):
        assert (
            sorted(row for rank in range(3) for row in ids(finished, rank=rank, ranks=3, seed=seed))
            == everything
        )


def test_shuffles_repeat(finished: ObjectStore) -> None:
    """A seed and an epoch fix the order; others give other orders."""
    assert ids(finished, seed=1) == ids(finished, seed=1)
    orders = {tuple(ids(finished, seed=seed, epoch=epoch)) for seed in (1, 2) for epoch in (0, 1)}
    assert len(orders) == 4


@pytest.mark.parametrize("seed", [None, 3])
def test_resume_anywhere(finished: ObjectStore, seed: int | None) -> None:
    """Skipping n rows gives what followed them."""
    whole = ids(finished, seed=seed, rank=1, ranks=2)
    for skip in (0, 1, len(whole) // 2, len(whole), len(whole) + 5):
        assert ids(finished, seed=seed, rank=1, ranks=2, skip=skip) == whole[skip:]


def test_changed_shards_are_refused(finished: ObjectStore) -> None:
    """A shard that is not what its receipt says is not trained on."""
    key = next(info.key for info in finished.list("shards/"))
    finished.put(key, finished.get(key) + b"x")
    with pytest.raises(DataError, match="expected sha256"):
        ids(finished)


def test_odd_arguments(finished: ObjectStore) -> None:
    """A rank outside the ranks is an error."""
    with pytest.raises(ValueError, match="got rank 2 of 2"):
        ids(finished, rank=2, ranks=2)
