"""Attention over the key/value cache, in blocks of a fixed size.

Every product has one shape whatever the length: a block of BLOCK keys. Blocks are added in order, and a
block beyond a row's own length contributes exact zeros. So the bits of a row depend on its own keys alone,
never on how long its neighbours are.
"""

import numpy as np
import numpy.typing as npt

from deployments.standin.weights import Float, Shape

Index = npt.NDArray[np.intp]

BLOCK = 64  # keys per product


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


def attend(queries: Float, keys: Float, values: Float, lengths: Index) -> Float:
    """Softmax attention.

    Args:
        queries: float32[batch, key_heads, rows, head], scaled.
        keys: float32[batch, key_heads, blocks, BLOCK, head].
        values: as keys.
        lengths: int[batch, rows], how many keys a row may see.

    Returns:
        float32[batch, key_heads, rows, head].
    """
    blocks = keys.shape[2]
    scores: Float = queries[:, :, None] @ keys.swapaxes(-1, -2)  # [batch, key_heads, blocks, rows, BLOCK]
    places = np.arange(blocks * BLOCK).reshape(blocks, 1, BLOCK)
    hidden = places >= lengths[:, None, None, :, None]
    np.copyto(scores, -np.inf, where=hidden)
    top = scores.max(axis=(2, 4), keepdims=True)
    np.subtract(scores, top, out=scores)
    np.exp(scores, out=scores)
    parts = scores @ values  # [batch, key_heads, blocks, rows, head]
    sums = scores.sum(axis=-1)
    total: Float = parts[:, :, 0].copy()
    weight = sums[:, :, 0].copy()
    for block in range(
        1, blocks
    ):  # in order: the sum of a row does not change with blocks of zeros behind it
        total += parts[:, :, block]
        weight += sums[:, :, block]
    total /= weight[..., None]
    return total
