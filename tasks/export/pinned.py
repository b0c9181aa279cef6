"""The receipts that an export stands on, and the sequences of a batch read back from them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import attrs

from tasks.dataset.shard import ShardRows
from tasks.dataset.shard_reader import decode_rejected, decode_shard
from tasks.errors import DataError, JobError
from tasks.export.example import Example
from tasks.ledger.ledger import Ledger
from tasks.ledger.receipt import FileEntry
from tasks.store.contract import ObjectStore, sha256_hex


@attrs.frozen(slots=True)
class PinnedBatch:
    """What one receipt says of a batch's rows."""

    batch: int
    generation: int
    shard: FileEntry | None
    rejected: FileEntry | None


@attrs.frozen(slots=True, eq=False)
class PinnedStore:
    """One store as an export began with it: receipts that come later are not part of it.

    Args:
        uri: of the job's own prefix.
        job_id: of its job.
        weight: how often its rows come.
        batches: in batch order, the highest generation of each.
        resolved: what its job resolved to, from `job.json`.
    """

    uri: str
    job_id: str
    weight: float
    batches: tuple[PinnedBatch, ...]
    resolved: Mapping[str, Any]

    @classmethod
    def pin(cls, store: ObjectStore, weight: float) -> Self:
        """Pin the receipts that a store has now; a job need not be complete.

        Raises:
            JobError: it has none yet.
        """
        job = Ledger(store, "").job()
        receipts = Ledger(store, str(job["job_id"])).iter_receipts()
        batches = tuple(PinnedBatch(r.batch, r.generation, r.shard, r.rejected) for r in receipts)
        if not batches:
            raise JobError(f"{store.uri}: expected committed batches to export, found no receipt")
        return cls(store.uri, str(job["job_id"]), weight, batches, job["resolved"])

    @property
    def vocabulary_size(self) -> int | None:
        """Ids are valid below it; None if the job does not say."""
        size = self.resolved.get("tokenizer", {}).get("size")
        return int(size) if size is not None else None

    def as_json(self) -> dict[str, Any]:
        """Return what the export's files keep of it: enough to read the very same rows again."""
        return {
            "uri": self.uri,
            "job_id": self.job_id,
            "weight": self.weight,
            "receipts": [attrs.asdict(batch) for batch in self.batches],
        }

    def with_receipts(self, stored: Sequence[Mapping[str, Any]]) -> Self:
        """Return this store with the receipts that an earlier run pinned."""
        batches = tuple(
            PinnedBatch(
                item["batch"],
                item["generation"],
                *(FileEntry(**item[kind]) if item[kind] else None for kind in ("shard", "rejected")),
            )
            for item in stored
        )
        return attrs.evolve(self, batches=batches)


def one_vocabulary(stores: Sequence[PinnedStore]) -> None:
    """Check that all stores are of one tokenizer.

    Raises:
        JobError: they are not: equal ids would mean different text.
    """
    first, *others = stores
    for other in others:
        for key in ("size", "files"):
            mine, theirs = (store.resolved.get("tokenizer", {}).get(key) for store in (first, other))
            if mine != theirs:
                raise JobError(
                    f"{other.uri}: expected the tokenizer of {first.uri} ({key} {mine}), got {theirs}: "
                    "their ids do not mean the same"
                )


def read_examples(
    store: ObjectStore, batch: PinnedBatch, include: frozenset[str], merge: bool
) -> Iterator[Example]:
    """Yield the accepted rows of a batch in source order, then its rejected rows of the codes in `include`.

    Args:
        store: the job's own prefix.
        batch: which.
        include: codes.
        merge: whether turns that extend each other come as one sequence.

    Raises:
        DataError: a file is not what its receipt says.
    """
    if batch.shard is not None:
        rows = decode_shard(_fetch(store, batch.shard), batch.shard.key)
        yield from _merged(rows, range(len(rows)), merge)
    if batch.rejected is not None and include:
        rows = decode_rejected(_fetch(store, batch.rejected), batch.rejected.key)
        picked = [row for row in range(len(rows)) if rows.verdicts[row] in include]
        yield from _merged(rows, picked, merge)


def _fetch(store: ObjectStore, entry: FileEntry) -> bytes:
    data = store.get(entry.key)
    if sha256_hex(data) != entry.sha256:
        raise DataError(f"{store.uri}/{entry.key}: expected sha256 {entry.sha256}, got {sha256_hex(data)}")
    return data


def _merged(rows: ShardRows, picked: Iterable[int], merge: bool) -> Iterator[Example]:
    before: Example | None = None
    for row in picked:
        example = Example.of(rows, row)
        if before is not None and merge and rows.extends[row] and _next_turn(before, example):
            before = before.followed_by(example)
            continue
        if before is not None:
            yield before
        before = example
    if before is not None:
        yield before


def _next_turn(before: Example, after: Example) -> bool:
    return (before.record, before.sample, before.turn + 1) == (after.record, after.sample, after.turn)
