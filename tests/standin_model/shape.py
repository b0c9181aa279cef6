"""The architecture of the bundled model, and its config.json."""

import json
from pathlib import Path
from typing import Any


def settings(vocabulary: int, ids: dict[str, int]) -> dict[str, Any]:
    """config.json: Qwen3, about 1.2 million float32 parameters; ids maps control tokens to ids.

    Head size 64 suits the attention kernels of genuine servers; one key/value head keeps the cache small.
    """
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "torch_dtype": "float32",
        "vocab_size": vocabulary,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": 4,
        "initializer_range": 0.02,
        "use_cache": True,
        "bos_token_id": ids["[BOS]"],
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["[EOS]"],
    }


def write_config(folder: Path) -> dict[str, Any]:
    """Write config.json for the tokenizer that lies in `folder`; returns its content."""
    vocabulary = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    ids = {token["content"]: int(token["id"]) for token in vocabulary["added_tokens"]}
    config = settings(max(ids.values()) + 1, ids)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return config
