"""In which order several sources are taken: by weight when planned, by seed within a batch (pure).

Of every prefix of what is planned at one time, each source's share is right to within a record or two, until
one of them ends; then the others go on in their own proportions.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

_HALF: Final = 0.5
"""A source's first record is due in the middle of its first interval: rare sources do not all come first."""


def merged(streams: Sequence[Iterator[T]], weights: Sequence[float], planned: Sequence[int]) -> Iterator[T]:
    """Yield the streams' items so that each comes at its own pace: `weight` items per unit of time.

    The n-th item of a stream (from 0, those planned before included) is due at (n + ½) / weight. A stream
    that lags behind what is planned (it is new, had ended, or its weight was raised) starts at the front, so
    that what is added is a fair mixture by itself.

    Args:
        streams: behind what is planned already.
        weights: above 0, one a stream.
        planned: how many items of each stream came before.
    """
    front = max((n - _HALF) / w for n, w in zip(planned, weights, strict=True))
    numbers = list(planned)
    starts = [0.0] * len(streams)
    for index, weight in enumerate(weights):
        if (numbers[index] + _HALF) / weight < front:
            starts[index], numbers[index] = front, 0

    def due(index: int) -> tuple[float, int]:
        return starts[index] + (numbers[index] + _HALF) / weights[index], index

    alive = list(range(len(streams)))
    while alive:
        index = min(alive, key=due)
        try:
            item = next(streams[index])
        except StopIteration:
            alive.remove(index)
            continue
        numbers[index] += 1
        yield item


def interleaving(counts: Sequence[int], seed: int, batch: int) -> list[int]:
    """Return, in batch order, from which span each record comes; a span's own records keep their order.

    Record j of the n records of span i has the key (j + u) / n with u = k / 2⁶⁴, where k is the first 8
    bytes, little-endian, of sha256 over the text `seed/batch/i/j`; keys ascend, span numbers break ties. This
    order belongs to the stored format: it must never change.

    Args:
        counts: records of each span.
        seed: stored in the plan with the batch.
        batch: number of the batch in the job.
    """
    keys = [
        ((number + _fraction(f"{seed}/{batch}/{span}/{number}")) / count, span)
        for span, count in enumerate(counts)
        for number in range(count)
    ]
    return [span for _, span in sorted(keys)]


def in_batch_order(rows: Sequence[Sequence[T]], seed: int | None, batch: int) -> list[T]:
    """Return the spans' records as one list: interleaved by the seed, or span by span."""
    if seed is None:
        return [row for span in rows for row in span]
    streams = [iter(span) for span in rows]
    return [next(streams[span]) for span in interleaving([len(span) for span in rows], seed, batch)]


def _fraction(text: str) -> float:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") / 2**64
