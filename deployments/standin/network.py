"""The Qwen3 forward pass in float32, always over ROWS rows.

Products of float32 matrices change in their last bits with the number of rows, so a step always has the
same number: decoding uses one row per slot of a group, prefill takes one sequence in pieces of ROWS positions
from 0.
"""

import numpy as np
import numpy.typing as npt

from deployments.standin.attention import BLOCK, Cache, attend
from deployments.standin.weights import Float, Layer, Weights

Index = npt.NDArray[np.intp]

ROWS = 32  # rows of every product; divides BLOCK


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
        self.weights, self.context = weights, context
        shape = weights.shape
        self.cache = Cache(shape, groups * ROWS, context + 1)  # one more: where idle rows write
        exponents = np.arange(0, shape.head, 2, dtype=np.float32) / np.float32(shape.head)
        frequencies = (1.0 / shape.rope_theta**exponents).astype(np.float32)
        angles = np.arange(context + 1, dtype=np.float32)[:, None] * frequencies
        self._cos, self._sin = np.cos(angles), np.sin(angles)
        self._rows = np.arange(ROWS)

    def decode(self, group: int, tokens: Index, positions: Index) -> Float:
        """One step for the slots of a group: a token and its position each, position -1 for an idle slot.

        Returns hidden float32[ROWS, hidden]; idle rows are meaningless.
        """
        blocks = int(positions.max()) // BLOCK + 1
        lengths = np.maximum(positions + 1, 1)[:, None].repeat(self.weights.shape.group, axis=1)
        places = np.where(positions < 0, self.context, positions)
        first = group * ROWS
        return self._forward(tokens, first + self._rows, places, slice(first, first + ROWS), blocks, lengths)

    def prefill(self, slot: int, tokens: Index, start: int) -> Float:
        """One piece of a prompt: up to ROWS tokens from position `start`, a multiple of ROWS.

        Returns hidden float32[len(tokens), hidden].
        """
        padded = np.zeros(ROWS, np.intp)
        padded[: len(tokens)] = tokens
        positions = np.minimum(start + self._rows, self.context)
        blocks = int(positions[-1]) // BLOCK + 1
        lengths = np.tile(positions + 1, self.weights.shape.group)[None]
        slots = np.full(ROWS, slot)
        return self._forward(padded, slots, positions, slice(slot, slot + 1), blocks, lengths)[: len(tokens)]

    def logits(self, hidden: Float) -> Float:
        """float32[ROWS, vocabulary] of hidden float32[ROWS, hidden]."""
        weights = self.weights
        return normalised(hidden, weights.norm, weights.shape.epsilon) @ weights.unembedding

    def _forward(
        self, tokens: Index, slots: Index, positions: Index, seen: slice, blocks: int, lengths: Index
    ) -> Float:
        """All blocks; `seen` are the cache slots attended to, one (prefill) or all (decode)."""
        x: Float = self.weights.embedding[tokens]
        cos, sin = self._cos[positions, None], self._sin[positions, None]
        for index, layer in enumerate(self.weights.layers):
            h = normalised(x, layer.attention_norm, self.weights.shape.epsilon)
            queries, keys, values = self._heads(layer, h, cos, sin)
            self.cache.write(index, slots, positions, keys, values)
            mixed = attend(
                self._grouped(queries, seen),
                self.cache.keys[index, seen, :, :blocks],
                self.cache.values[index, seen, :, :blocks],
                lengths,
            )
            x = x + self._flat(mixed, seen) @ layer.output
            x += _feed_forward(layer, normalised(x, layer.feed_norm, self.weights.shape.epsilon))
        return x

    def _heads(self, layer: Layer, h: Float, cos: Float, sin: Float) -> tuple[Float, Float, Float]:
        """Rotated queries and keys, and values: float32[rows, heads or key_heads, head]."""
        shape = self.weights.shape
        joined = (h @ layer.query_key_value).reshape(ROWS, -1, shape.head)
        queries = normalised(joined[:, : shape.heads], layer.query_norm, shape.epsilon)
        keys = normalised(
            joined[:, shape.heads : shape.heads + shape.key_heads], layer.key_norm, shape.epsilon
        )
        queries = _rotated(queries, cos, sin)
        queries *= np.float32(shape.head**-0.5)
        return queries, _rotated(keys, cos, sin), joined[:, shape.heads + shape.key_heads :]

    def _grouped(self, queries: Float, seen: slice) -> Float:
        """Queries as [batch, key_heads, rows, head]: query heads, or heads x positions of a piece."""
        shape = self.weights.shape
        split = queries.reshape(ROWS, shape.key_heads, shape.group, shape.head)
        if seen.stop - seen.start == ROWS:
            return split
        return np.ascontiguousarray(split.transpose(1, 2, 0, 3)).reshape(1, shape.key_heads, -1, shape.head)

    def _flat(self, mixed: Float, seen: slice) -> Float:
        """The inverse of `_grouped`: float32[rows, heads * head]."""
        shape = self.weights.shape
        if seen.stop - seen.start != ROWS:
            mixed = mixed.reshape(shape.key_heads, shape.group, ROWS, shape.head).transpose(2, 0, 1, 3)
        return np.ascontiguousarray(mixed).reshape(ROWS, -1)


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
