"""The model folder as numpy arrays, laid out for row-major products."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

Float = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers of config.json that the decoder needs."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    key_heads: int
    head: int
    epsilon: float
    rope_theta: float
    context: int

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.heads // self.key_heads


@dataclass(frozen=True, slots=True)
class Layer:
    """One block; matrices are [in, out], so that a row of activations multiplies from the left."""

    attention_norm: Float
    query_key_value: Float  # [hidden, (heads + 2 * key_heads) * head]
    query_norm: Float
    key_norm: Float
    output: Float
    feed_norm: Float
    gate_up: Float  # [hidden, 2 * intermediate]
    down: Float


@dataclass(frozen=True, slots=True)
class Weights:
    """All float32 tensors of one Qwen3 model."""

    shape: Shape
    embedding: Float  # [vocabulary, hidden]
    layers: tuple[Layer, ...]
    norm: Float
    unembedding: Float  # [hidden, vocabulary]


def read_shape(config: dict[str, Any]) -> Shape:
    """The shape in a config.json; raises ValueError for another architecture than dense Qwen3."""
    if config.get("model_type") != "qwen3":
        raise ValueError(f"model_type: expected qwen3, got {config.get('model_type')!r}")
    rope = config.get("rope_parameters") or {}
    return Shape(
        vocabulary=config["vocab_size"],
        hidden=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        key_heads=config["num_key_value_heads"],
        head=config["head_dim"],
        epsilon=config["rms_norm_eps"],
        rope_theta=config.get("rope_theta") or rope["rope_theta"],
        context=config["max_position_embeddings"],
    )


def _layer(tensors: dict[str, Float], index: int) -> Layer:
    """One block from its transformers names."""

    def get(name: str) -> Float:
        return np.ascontiguousarray(tensors[f"model.layers.{index}.{name}.weight"], np.float32)

    def joined(*names: str) -> Float:
        return np.ascontiguousarray(np.concatenate([get(name) for name in names]).T)

    return Layer(
        attention_norm=get("input_layernorm"),
        query_key_value=joined("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        query_norm=get("self_attn.q_norm"),
        key_norm=get("self_attn.k_norm"),
        output=joined("self_attn.o_proj"),
        feed_norm=get("post_attention_layernorm"),
        gate_up=joined("mlp.gate_proj", "mlp.up_proj"),
        down=joined("mlp.down_proj"),
    )


def load(folder: Path, noise: float = 0.0) -> Weights:
    """Read config.json and model.safetensors of a folder; `noise`: its share of each tensor's deviation."""
    shape = read_shape(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    tensors = load_file(str(folder / "model.safetensors"))
    luck = np.random.default_rng(1)
    for name, tensor in tensors.items() if noise else ():
        off = luck.normal(0.0, noise * float(tensor.std()), tensor.shape)
        tensors[name] = tensor + off.astype(tensor.dtype)
    embedding = np.ascontiguousarray(tensors["model.embed_tokens.weight"], np.float32)
    head = tensors.get("lm_head.weight", embedding)
    return Weights(
        shape=shape,
        embedding=embedding,
        layers=tuple(_layer(tensors, i) for i in range(shape.layers)),
        norm=np.ascontiguousarray(tensors["model.norm.weight"], np.float32),
        unembedding=np.ascontiguousarray(head.T, np.float32),
    )
