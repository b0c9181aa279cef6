"""Which rows come, how often, in which order, and to which split (pure)."""

import hashlib
import heapq
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import attrs
import numpy as np
from numpy.typing import NDArray

from tasks.export.example import Example

SPLITS: Final = ("train", "eval")

Key = tuple[int, int]


@attrs.frozen(slots=True, order=True)
class Visit:
    """One batch of one store, read in one round.

    Args:
        round: zero-based; a store of weight w is read in rounds 0 … ceil(w) - 1.
        due: where in the round, in (0, 1): stores of any size run side by side, so any prefix is a mixture.
        store: index of the store.
        place: index of the batch among the store's pinned ones.
    """

    round: int
    due: float
    store: int
    place: int


def visits(batches: Sequence[int], weights: Sequence[float]) -> Iterator[Visit]:
    """Yield what is read, in order.

    Args:
        batches: how many each store has.
        weights: of each store, > 0.
    """
    rounds = max((int(np.ceil(weight)) for weight in weights), default=0)
    for number in range(rounds):
        yield from heapq.merge(
            *(
                [Visit(number, (place + 0.5) / count, store, place) for place in range(count)]
                for store, (count, weight) in enumerate(zip(batches, weights, strict=True))
                if weight > number
            )
        )


def key_of(example: Example, dedup: Literal["rows", "prompts", "none"]) -> Key:
    """Return what makes a row the same as another one: 128 bits.

    `prompts` takes the sample number in, for the samples of a prompt differ on purpose.
    """
    if dedup == "prompts":
        ids, mark = example.input_ids[: example.prompt_length], example.sample
    else:
        ids, mark = example.input_ids, 0
    salt = mark.to_bytes(8, "little")
    data = hashlib.blake2b(ids.astype("<i4", copy=False).tobytes(), digest_size=16, salt=salt).digest()
    return int.from_bytes(data[:8], "little"), int.from_bytes(data[8:], "little")


def share(seed: int, purpose: str, key: str) -> float:
    """Return a number in [0, 1) that seed, purpose and key fix."""
    digest = hashlib.blake2b(f"{seed}/{purpose}/{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64


def comes(weight: float, number: int, seed: int, example: Example) -> bool:
    """Say whether a row of a store of this weight comes in round `number`."""
    left = weight - number
    return left >= 1 or share(seed, "weight", example.input_ids.tobytes().hex()) < left


def split_of(example: Example, seed: int, eval_share: float) -> str:
    """Return `train` or `eval`: one for all turns and samples of a source record, whatever store it is in."""
    return "eval" if eval_share and share(seed, "split", example.record) < eval_share else "train"


class Seen:
    """Which keys came before: an open-addressing table of 16 bytes a key, at most two thirds full."""

    def __init__(self) -> None:
        self._table: NDArray[np.uint64] = np.zeros((1 << 12, 2), np.uint64)
        self._count = 0

    def add(self, key: Key) -> bool:
        """Note a key; return whether it is new."""
        key = (key[0] or 1, key[1])  # an empty cell holds 0
        if 3 * self._count >= 2 * len(self._table):
            self._grow()
        at = self._find(key)
        if self._table[at, 0]:
            return False
        self._table[at] = key
        self._count += 1
        return True

    def _find(self, key: Key) -> int:
        size = len(self._table)
        at = key[0] % size
        while self._table[at, 0] and (int(self._table[at, 0]), int(self._table[at, 1])) != key:
            at = (at + 1) % size
        return at

    def _grow(self) -> None:
        old = self._table[self._table[:, 0] != 0]
        self._table = np.zeros((2 * len(self._table), 2), np.uint64)
        for first, second in old.tolist():
            self._table[self._find((first, second))] = (first, second)
