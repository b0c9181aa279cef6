"""Shards straight into a training loop: ids and loss mask, split by rank, shuffled by seed, resumable.

    for row in read_rows(store, seed=1, rank=0, ranks=8, skip=already_seen):
        train(row.input_ids, row.loss_mask)

Every rank sees whole shards and only its own; every epoch is a permutation fixed by (seed, epoch). Large jobs
should read this way: nothing is copied, nothing is tokenized again.
"""

from collections.abc import Iterator

import attrs
import numpy as np
from numpy.typing import NDArray

from tasks.dataset.shard_reader import decode_shard
from tasks.errors import DataError
from tasks.ledger.ledger import Ledger
from tasks.ledger.receipt import Receipt
from tasks.rows.records import Ids, Segment
from tasks.store.contract import ObjectStore, sha256_hex


@attrs.frozen(slots=True, eq=False)
class TrainingRow:
    """One accepted row.

    Args:
        row_id: unique in the job.
        input_ids: int32[n]: prompt and output, verbatim.
        loss_mask: bool[n]: False on the prompt, True on the output.
        segments: named half-open ranges that tile it, for other masks.
        verdict: `complete`, or what made it acceptable.
    """

    row_id: str
    input_ids: Ids
    loss_mask: NDArray[np.bool_]
    segments: tuple[Segment, ...]
    verdict: str


def read_rows(
    store: ObjectStore,
    *,
    seed: int | None = None,
    epoch: int = 0,
    rank: int = 0,
    ranks: int = 1,
    skip: int = 0,
) -> Iterator[TrainingRow]:
    """Yield this rank's accepted rows; one shard is in memory at a time.

    Args:
        store: the job's own prefix (`find_job`).
        seed: shuffles shards, and rows within a shard; None keeps source order.
        epoch: another permutation of the same seed.
        rank: of this reader, in [0, ranks).
        ranks: readers that share the data.
        skip: rows of this rank and epoch that were seen before: whole shards among them are not fetched.

    Raises:
        DataError: a shard is not what its receipt says.
    """
    if not 0 <= rank < ranks or skip < 0:
        raise ValueError(f"expected 0 <= rank < ranks and skip >= 0, got rank {rank} of {ranks}, skip {skip}")
    ledger = Ledger(store, str(Ledger(store, "").job()["job_id"]))
    receipts = [receipt for receipt in ledger.iter_receipts() if receipt.shard is not None]
    shuffled = np.random.default_rng((seed, epoch)) if seed is not None else None
    order = shuffled.permutation(len(receipts)) if shuffled is not None else np.arange(len(receipts))
    for place in order[rank::ranks]:
        receipt = receipts[int(place)]
        rows = receipt.shard.rows if receipt.shard is not None else 0
        if skip >= rows:
            skip -= rows
            continue
        picks = np.arange(rows)
        if seed is not None:
            picks = np.random.default_rng((seed, epoch, int(place))).permutation(rows)
        yield from _read_shard(store, receipt, picks[skip:])
        skip = 0


def _read_shard(store: ObjectStore, receipt: Receipt, picks: NDArray[np.int64]) -> Iterator[TrainingRow]:
    entry = receipt.shard
    assert entry is not None
    data = store.get(entry.key)
    if sha256_hex(data) != entry.sha256:
        raise DataError(f"{store.uri}/{entry.key}: expected sha256 {entry.sha256}, got {sha256_hex(data)}")
    shard = decode_shard(data, entry.key)
    for pick in picks:
        row = int(pick)
        ids = shard.sequences.row(row)
        mask = np.arange(ids.size) >= shard.prompt_lengths[row]
        yield TrainingRow(shard.row_ids[row], ids, mask, shard.segments[row], shard.verdicts[row])
