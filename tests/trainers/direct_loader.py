"""The direct reader behind a PyTorch DataLoader: ranks times workers share the shards, and each resumes."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from tasks.dataset.training_reader import read_rows
from tasks.job.spec import StoreSpec
from tasks.store.opening import find_job


class ShardDataset(IterableDataset[dict[str, Any]]):
    """Rows of a store. `seen`: how many rows each worker gave before, counted by the `worker` of each row."""

    def __init__(
        self, uri: str, seed: int, epoch: int = 0, rank: int = 0, ranks: int = 1, seen: Mapping[int, int] = {}
    ) -> None:
        self._spec, self._seed, self._epoch = StoreSpec(uri=uri), seed, epoch
        self._rank, self._ranks, self._seen = rank, ranks, dict(seen)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        reader, readers = self._rank * workers + worker, self._ranks * workers
        skip = self._seen.get(worker, 0)
        store = find_job(self._spec)  # opened in the worker: connections do not survive a fork
        for row in read_rows(
            store, seed=self._seed, epoch=self._epoch, rank=reader, ranks=readers, skip=skip
        ):
            yield {
                "row_id": row.row_id,
                "worker": worker,
                "input_ids": torch.from_numpy(row.input_ids.astype("int64")),
                "loss_mask": torch.from_numpy(row.loss_mask),
            }
