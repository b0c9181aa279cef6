"""Attention over the key/value cache, in blocks of a fixed size.

Every product has one shape whatever the length: a block of BLOCK keys. Blocks are added in order, and a
block beyond a row's own length contributes exact zeros. So the bits of a row depend on its own keys alone,
never on how long its neighbours are.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deployments.standin.weights import Float, Shape

Index = npt.NDArray[np.intp]

BLOCK = 64  # keys per product


COPY_COST = 3  # reading scattered slots costs this many times as much as reading them in place


@dataclass(frozen=True, slots=True)
class View:
    """Rows that attend to equally many blocks: which of the batch, in which cache slots, seeing what."""

    rows: slice | Index
    slots: slice | Index
    mask: Float  # of `unseen`, one line for all query heads of a row


class Cache:
    """Keys and values of all slots: float32[layers, slots, key_heads, blocks, BLOCK, head]."""

    def __init__(self, shape: Shape, slots: int, context: int) -> None:
        """Reserve address space for `slots` sequences of `context` positions; pages fill as they are used."""
        blocks = -(-context // BLOCK)
        self.size = (shape.layers, slots, shape.key_heads, blocks, BLOCK, shape.head)
        self.keys = np.zeros(self.size, np.float32)
        self.values = np.zeros(self.size, np.float32)

    def write(self, layer: int, slots: Index, positions: Index, keys: Float, values: Float) -> None:
        """Store keys and values float32[rows, key_heads, head] of (slot, position) pairs."""
        block, within = positions // BLOCK, positions % BLOCK
        self.keys[layer, slots, :, block, within] = keys
        self.values[layer, slots, :, block, within] = values

    def read(self, layer: int, view: View) -> tuple[Float, Float]:
        """Keys and values float32[batch, key_heads, blocks, BLOCK, head] of a view."""
        blocks = view.mask.shape[2]
        return self.keys[layer, view.slots, :, :blocks], self.values[layer, view.slots, :, :blocks]


def views(positions: Index, first: int) -> list[View]:
    """Group rows by length: positions int[rows] (-1: idle), row i lies in slot first + i.

    Usually all rows share one view. Where a few long rows would slow down many short or idle ones, rows share
    a view up to the next power of two of their block counts. How rows are grouped changes no bit of theirs.
    """
    needed = positions // BLOCK + 1  # 0 for an idle row
    classes = 2 ** np.ceil(np.log2(np.maximum(needed, 1))).astype(np.intp)
    if COPY_COST * classes[needed > 0].sum() >= len(needed) * needed.max():
        mask = unseen(np.maximum(positions[:, None] + 1, 1), int(needed.max()))
        return [View(slice(None), slice(first, first + len(positions)), mask)]
    found = []
    for blocks in np.unique(classes[needed > 0]):
        rows = np.flatnonzero((classes == blocks) & (needed > 0))
        mask = unseen(positions[rows, None] + 1, int(needed[rows].max()))
        found.append(View(rows, first + rows, mask))
    return found


def unseen(lengths: Index, blocks: int) -> Float:
    """What is added to scores: 0 for the first `lengths` keys of each row, minus infinity beyond.

    lengths int[batch, rows] gives float32[batch, 1, blocks, rows, BLOCK].
    """
    places = np.arange(blocks * BLOCK).reshape(blocks, 1, BLOCK)
    hidden = places >= lengths[:, None, None, :, None]
    return np.where(hidden, np.float32(-np.inf), np.float32(0))


def attend(queries: Float, keys: Float, values: Float, mask: Float) -> Float:
    """Softmax attention.

    Args:
        queries: float32[batch, key_heads, rows, head], scaled.
        keys: float32[batch, key_heads, blocks, BLOCK, head].
        values: as keys.
        mask: of `unseen`, for these rows or one for all of them.

    Returns:
        float32[batch, key_heads, rows, head].
    """
    scores: Float = queries[:, :, None] @ keys.swapaxes(-1, -2)  # [batch, key_heads, blocks, rows, BLOCK]
    scores += mask
    scores -= scores.max(axis=-1).max(axis=2)[:, :, None, :, None]
    np.exp(scores, out=scores)
    parts = scores @ values  # [batch, key_heads, blocks, rows, head]
    sums = scores.sum(axis=-1)
    total: Float = parts[:, :, 0].copy()
    weight = sums[:, :, 0].copy()
    for block in range(1, keys.shape[2]):  # in order: blocks of zeros behind a row's own change nothing
        total += parts[:, :, block]
        weight += sums[:, :, block]
    total /= weight[..., None]
    return total
