"""Feeds a DataLoader from a store: `python read_direct.py STORE RANKS WORKERS STOP`, where PyTorch is.

Prints one JSON object: per rank all rows as its loop got them, those of a loop that ends after STOP rows, and
those that a new loader gave after it was told what had been seen.
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from torch.utils.data import DataLoader

from tests.trainers.direct_loader import ShardDataset


def loader(
    store: str, rank: int, ranks: int, workers: int, seen: dict[int, int]
) -> DataLoader[dict[str, Any]]:
    """Return one rank's loader."""
    dataset = ShardDataset(store, seed=3, rank=rank, ranks=ranks, seen=seen)
    return DataLoader(dataset, batch_size=4, num_workers=workers, collate_fn=list)


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without tensors."""
    return {
        "row_id": row["row_id"],
        "ids": row["input_ids"].tolist(),
        "mask": row["loss_mask"].int().tolist(),
    }


def main(store: str, ranks: int, workers: int, stop: int) -> dict[str, Any]:
    """Return what this script prints."""
    found: dict[str, Any] = {"whole": [], "before": [], "after": []}
    for rank in range(ranks):
        found["whole"].append(
            [plain(row) for batch in loader(store, rank, ranks, workers, {}) for row in batch]
        )
        seen: Counter[int] = Counter()
        before: list[dict[str, Any]] = []
        for batch in loader(store, rank, ranks, workers, {}):
            if len(before) >= stop:
                break
            before += [plain(row) for row in batch]
            seen.update(row["worker"] for row in batch)
        found["before"].append(before)
        again = loader(store, rank, ranks, workers, dict(seen))
        found["after"].append([plain(row) for batch in again for row in batch])
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], *map(int, sys.argv[2:]))))
