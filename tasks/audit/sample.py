"""A sample of a dataset's accepted rows, chosen by hash: the same rows in whatever order they are seen."""

import hashlib
import heapq
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
import orjson
from numpy.typing import NDArray

from tasks.audit.checks import BatchRows
from tasks.rows.records import Ids


@attrs.frozen(slots=True, eq=False)
class SampledRow:
    """One accepted row as it lies in its shard.

    Args:
        key: of the shard.
        row: its index there.
        row_id: its name.
        ids: int32[n]: prompt and output.
        prompt_length: where the output begins.
        mix: the mixture's choice; "" without one.
        kept: float64[outputs]: the log probabilities told at generation; None when they were not kept.
    """

    key: str
    row: int
    row_id: str
    ids: Ids
    prompt_length: int
    mix: str
    kept: NDArray[np.float64] | None


class RowSample:
    """Takes batches as the audit reads them; up to half the sample are rows with kept log probabilities.

    Args:
        size: rows to choose, at least 1.
        seed: of the choice.
    """

    def __init__(self, size: int, seed: int = 0) -> None:
        self._size, self._seed = size, seed
        self._any: list[tuple[int, str, SampledRow]] = []
        self._kept: list[tuple[int, str, SampledRow]] = []
        self.rows_seen = 0

    def see(self, rows: BatchRows) -> None:
        """Look at the accepted rows of one batch."""
        shard = rows.shard
        if shard is None or rows.receipt.shard is None:
            return
        facts = {str(row["row_id"]): row["facts"] for row in rows.provenance}
        self.rows_seen += len(shard)
        for index, row_id in enumerate(shard.row_ids):
            order = -self._rank(row_id)  # heapq keeps the least: of negated ranks the one to be dropped next
            kept = facts.get(row_id, {}).get("logprobs")
            if not (
                _enters(self._any, order, self._size)
                or (kept and _enters(self._kept, order, self._size // 2))
            ):
                continue
            chosen = SampledRow(
                rows.receipt.shard.key,
                index,
                row_id,
                shard.sequences.row(index).copy(),  # a view would keep the whole shard in memory
                int(shard.prompt_lengths[index]),
                _mix(shard.metadata[index]),
                _numbers(kept),
            )
            _enter(self._any, (order, row_id, chosen), self._size)
            if kept:
                _enter(self._kept, (order, row_id, chosen), self._size // 2)

    def _rank(self, row_id: str) -> int:
        digest = hashlib.sha256(f"audit:{self._seed}:{row_id}".encode()).digest()
        return int.from_bytes(digest[:8], "big")

    def rows(self) -> tuple[SampledRow, ...]:
        """Return the sample, at most `size` rows, by shard and index."""
        chosen = {row_id: row for _, row_id, row in self._kept}
        for _, row_id, row in sorted(self._any, reverse=True):
            if len(chosen) < self._size:
                chosen.setdefault(row_id, row)
        return tuple(sorted(chosen.values(), key=lambda row: (row.key, row.row)))


def _enters(heap: list[tuple[int, str, SampledRow]], order: int, size: int) -> bool:
    return len(heap) < size or (size > 0 and order > heap[0][0])


def _enter(heap: list[tuple[int, str, SampledRow]], item: tuple[int, str, SampledRow], size: int) -> None:
    if len(heap) < size:
        heapq.heappush(heap, item)
    elif size > 0 and item[0] > heap[0][0]:
        heapq.heapreplace(heap, item)


def _mix(metadata: str) -> str:
    try:
        value = orjson.loads(metadata)
    except orjson.JSONDecodeError:
        return ""
    return str(value.get("mix", "")) if isinstance(value, Mapping) else ""


def _numbers(kept: Any) -> NDArray[np.float64] | None:
    if not isinstance(kept, list) or not all(isinstance(value, int | float) for value in kept):
        return None
    return np.array(kept, np.float64)
