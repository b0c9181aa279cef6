"""Which batches a report looks into (pure): all of a small job, a seeded choice of a large one."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from tasks.ledger.receipt import Receipt

SAMPLE_BYTES: Final = 256 * 2**20
"""Bytes of shards, rejected and provenance files that are read: some seconds from a disk or S3."""

SAMPLE_ROWS: Final = 200_000
"""Rows: a few numbers of each are held."""

SEED: Final = 20_240_601
"""Fixed, so that equal datasets give equal reports."""


def sampled_batches(
    receipts: Mapping[int, Receipt], most_bytes: int = SAMPLE_BYTES, most_rows: int = SAMPLE_ROWS
) -> list[Receipt]:
    """Return receipts in seeded order, up to the limits, at least one if there is any."""
    chosen: list[Receipt] = []
    bytes_, rows = 0, 0
    numbers = sorted(receipts)
    for place in np.random.default_rng(SEED).permutation(len(numbers)):
        receipt = receipts[numbers[int(place)]]
        bytes_ += sum(e.bytes for kind, e in receipt.files().items() if kind != "frequencies")
        rows += int(receipt.rows["total"])
        if chosen and (bytes_ > most_bytes or rows > most_rows):
            break
        chosen.append(receipt)
    return chosen
