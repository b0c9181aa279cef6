"""The Qwen3 forward pass in float32, in fixed shapes.

Products of float32 matrices change in their last bits with the number of rows. So decoding always has ROWS
rows, one per slot of a group, and a prompt is cut into pieces of LONG and ROWS rows by its own length alone.
"""

import numpy as np
import numpy.typing as npt

from deployments.standin.attention import BLOCK, Cache, View, attend, unseen, views
from deployments.standin.blas import use_one_thread
from deployments.standin.weights import Float, Layer, Weights

Index = npt.NDArray[np.intp]

ROWS = 32  # rows of a product in decoding, and of a short piece of a prompt; divides BLOCK
LONG = 128  # rows of a long piece


def normalised(x: Float, weight: Float, epsilon: float) -> Float:
    """RMSNorm over the last axis."""
    scale: Float = np.einsum("...i,...i->...", x, x)[..., None]
    scale *= np.float32(1 / x.shape[-1])
    scale += np.float32(epsilon)
    np.sqrt(scale, out=scale)
    result: Float = x / scale
    result *= weight
    return result


class Network:
    """Weights, rotary tables and the cache of `groups` times ROWS slots."""

    def __init__(self, weights: Weights, groups: int, context: int) -> None:
        """Prepare for groups * ROWS sequences of up to `context` positions."""
        use_one_thread()
        self.weights, self.context = weights, context
        shape = weights.shape
        self.cache = Cache(shape, groups * ROWS, context + 1)  # one more: where idle rows write
        exponents = np.arange(0, shape.head, 2, dtype=np.float32) / np.float32(shape.head)
        frequencies = (1.0 / shape.rope_theta**exponents).astype(np.float32)
        angles = np.arange(context + 1, dtype=np.float32)[:, None] * frequencies
        self._cos, self._sin = np.cos(angles), np.sin(angles)

    def decode(self, group: int, tokens: Index, positions: Index) -> Float:
        """One step for the slots of a group: a token and its position each, position -1 for an idle slot.

        Returns hidden float32[ROWS, hidden]; idle rows are meaningless.
        """
        places = np.where(positions < 0, self.context, positions)
        first = group * ROWS
        return self._forward(tokens, first + np.arange(ROWS), places, views(positions, first))

    def prefill(self, slot: int, context: Index, start: int) -> Float:
        """The next piece of a context from position `start`: LONG rows while many are left, then ROWS.

        The cut depends on the context alone. Returns hidden float32[n, hidden] of the n ids of the piece.
        """
        rows = LONG if len(context) - start > 3 * ROWS else ROWS
        piece = context[start : start + rows]
        padded = np.zeros(rows, np.intp)
        padded[: len(piece)] = piece
        positions = np.minimum(start + np.arange(rows), self.context)
        mask = unseen(np.tile(positions + 1, self.weights.shape.group)[None], int(positions[-1]) // BLOCK + 1)
        view = View(slice(0, 1), slice(slot, slot + 1), mask)
        return self._forward(padded, np.full(rows, slot), positions, [view])[: len(piece)]

    def logits(self, hidden: Float) -> Float:
        """float32[ROWS, vocabulary] of hidden float32[ROWS, hidden]."""
        weights = self.weights
        return normalised(hidden, weights.norm, weights.shape.epsilon) @ weights.unembedding

    def _forward(self, tokens: Index, slots: Index, positions: Index, seen: list[View]) -> Float:
        """All blocks: rows of (token, slot, position), and what they attend to."""
        x: Float = self.weights.embedding[tokens]
        cos, sin = self._cos[positions, None], self._sin[positions, None]
        epsilon = self.weights.shape.epsilon
        for index, layer in enumerate(self.weights.layers):
            h = normalised(x, layer.attention_norm, epsilon)
            queries, keys, values = self._heads(layer, h, cos, sin)
            self.cache.write(index, slots, positions, keys, values)
            grouped = self._grouped(queries, len(x) if slots[0] == slots[-1] else 1)
            mixed = np.zeros_like(grouped)
            for view in seen:
                mixed[view.rows] = attend(grouped[view.rows], *self.cache.read(index, view), view.mask)
            x = x + self._flat(mixed) @ layer.output
            x += _feed_forward(layer, normalised(x, layer.feed_norm, epsilon))
        return x

    def _heads(self, layer: Layer, h: Float, cos: Float, sin: Float) -> tuple[Float, Float, Float]:
        """Rotated queries and keys, and values: float32[rows, heads or key_heads, head]."""
        shape = self.weights.shape
        joined = (h @ layer.query_key_value).reshape(len(h), -1, shape.head)
        queries = normalised(joined[:, : shape.heads], layer.query_norm, shape.epsilon)
        keys = normalised(
            joined[:, shape.heads : shape.heads + shape.key_heads], layer.key_norm, shape.epsilon
        )
        queries = _rotated(queries, cos, sin)
        queries *= np.float32(shape.head**-0.5)
        return queries, _rotated(keys, cos, sin), joined[:, shape.heads + shape.key_heads :]

    def _grouped(self, queries: Float, piece: int) -> Float:
        """Queries as float32[batch, key_heads, group * piece, head]: of many slots, or of a piece."""
        shape = self.weights.shape
        split = queries.reshape(-1, piece, shape.key_heads, shape.group, shape.head)
        joined = np.ascontiguousarray(split.transpose(0, 2, 3, 1, 4))
        return joined.reshape(len(split), shape.key_heads, shape.group * piece, shape.head)

    def _flat(self, mixed: Float) -> Float:
        """The inverse of `_grouped`: float32[batch * piece, heads * head]."""
        shape = self.weights.shape
        split = mixed.reshape(len(mixed), shape.key_heads, shape.group, -1, shape.head)
        return np.ascontiguousarray(split.transpose(0, 3, 1, 2, 4)).reshape(-1, shape.heads * shape.head)


def _rotated(x: Float, cos: Float, sin: Float) -> Float:
    """Rotary positions by halves: x float32[rows, heads, head], cos and sin float32[rows, 1, head / 2]."""
    half = x.shape[-1] // 2
    low, high = x[..., :half], x[..., half:]
    return np.concatenate((low * cos - high * sin, high * cos + low * sin), axis=-1)


def _feed_forward(layer: Layer, h: Float) -> Float:
    """SwiGLU."""
    joined = h @ layer.gate_up
    half = joined.shape[1] // 2
    gate, up = joined[:, :half], joined[:, half:]
    result: Float = (gate / (1 + np.exp(-gate)) * up) @ layer.down
    return result
