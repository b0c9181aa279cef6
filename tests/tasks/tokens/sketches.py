"""Families whose tokenizer no package holds: our own short templates on a vocabulary of bytes.

Control tokens have the genuine texts, prompts end as the genuine ones do; ids and wording are ours. What they
prove is the grammar, not the ids: tests label them `sketch`.
"""

import json
from pathlib import Path
from typing import Any

import attrs
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

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
    """

    controls: tuple[str, ...]
    ends: tuple[str, ...]
    start: str
    middle: str
    stop: str
    tail: str = ""
    reason: str = "''"
    switch: tuple[str, Any, Any] | None = None

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


def _chatml(*controls: str, tail: str = "", reason: str = "''", switch: Any = None) -> Sketch:
    return Sketch(
        controls=(*_CHATML, *controls),
        ends=("<|im_end|>", "<|endoftext|>"),
        start="<|im_start|>",
        middle="\n",
        stop="<|im_end|>\n",
        tail=tail,
        reason=reason,
        switch=switch,
    )


def _deepseek(tail: str) -> Sketch:
    return Sketch(
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
    "qwen3-thinking-2507": _chatml(*_THINK, tail="{{- '<think>\\n' -}}"),
    "qwen3-instruct-2507": _chatml(*_THINK),
    "nemotron-3": _chatml(
        *_THINK,
        tail=_OFF.replace("OFF", "'<think></think>'").replace("ON", "'<think>\\n'"),
        switch=("enable_thinking", True, False),
    ),
    "deepseek-r1-0528": _deepseek(""),
    "deepseek-v3.2": _deepseek(_OFF.replace("OFF", "'</think>'").replace("ON", "'<think>'")),
    "glm-4.5": Sketch(
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

_OWN_TEMPLATES = {
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


def sketch_folder(name: str, root: Path) -> Path:
    """Lay out a model folder for `SKETCHES[name]` below `root`; return it."""
    sketch = SKETCHES[name]
    folder = root / name
    folder.mkdir()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={mark: i for i, mark in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in sketch.controls])
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = {text: tokenizer.token_to_id(text) for text in sketch.controls}
    (folder / "chat_template.jinja").write_text(_OWN_TEMPLATES.get(name, sketch.template))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [ids[text] for text in sketch.ends]})
    )
    return folder


def sketch_args(name: str, thinking: bool) -> dict[str, Any]:
    """Return the template arguments that switch a sketch's reasoning on or off."""
    switch = SKETCHES[name].switch
    return {} if switch is None else {switch[0]: switch[1] if thinking else switch[2]}
