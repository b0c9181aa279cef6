"""The bundled model folder: what other programs find in it."""

import json
from pathlib import Path
from typing import Any

import pytest

from deployments.standin.arguments import MODEL
from deployments.standin.template import ChatTemplate

CONTROL = [
    "[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>",
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|im_middle|>", "<think>", "</think>",
]  # fmt: skip
PROBE = "don't I'll 12345 naïve 你好 привет हिन्दी ไทย  \n\n x=1;\t</think> <|im_end|> e\u0301"

USER: dict[str, Any] = {"role": "user", "content": "hi"}
ANSWER: dict[str, Any] = {"role": "assistant", "content": "yo", "reasoning_content": "r"}
CALL = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": {"a": "é"}}}
CALLING: dict[str, Any] = {
    "role": "assistant",
    "content": "",
    "reasoning_content": "rr",
    "tool_calls": [CALL],
}
RESULT: dict[str, Any] = {"role": "tool", "tool_call_id": "functions.f:0", "content": "5"}
HEAD = "<|im_assistant|>assistant<|im_middle|>"
ASKED = "<|im_user|>user<|im_middle|>hi<|im_end|>"
CALLED = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
    '{"a": "é"}<|tool_call_end|><|tool_calls_section_end|>'
)

TEMPLATE_CASES = {
    "one question": ([USER], {}, f"{ASKED}{HEAD}<think>"),
    "thinking off": ([USER], {"thinking": False}, f"{ASKED}{HEAD}<think></think>"),
    "system": (
        [{"role": "system", "content": "S"}, USER],
        {},
        f"<|im_system|>system<|im_middle|>S<|im_end|>{ASKED}{HEAD}<think>",
    ),
    "earlier reasoning is blanked": (
        [USER, ANSWER, USER],
        {},
        f"{ASKED}{HEAD}<think></think>yo<|im_end|>{ASKED}{HEAD}<think>",
    ),
    "reasoning stays in a live tool loop": (
        [USER, ANSWER, USER, CALLING, RESULT],
        {},
        f"{ASKED}{HEAD}<think></think>yo<|im_end|>{ASKED}{HEAD}<think>rr</think>{CALLED}<|im_end|>"
        f"<|im_system|>tool<|im_middle|>## Return of functions.f:0\n5<|im_end|>{HEAD}<think>",
    ),
    "content parts": (
        [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        {},
        f"{ASKED}{HEAD}<think>",
    ),
    "tools": (
        [USER],
        {"tools": [{"name": "<é>"}]},
        f'<|im_system|>tool_declare<|im_middle|>[{{"name": "<é>"}}]<|im_end|>{ASKED}{HEAD}<think>',
    ),
}


@pytest.mark.parametrize(("messages", "arguments", "expected"), TEMPLATE_CASES.values(), ids=TEMPLATE_CASES)
def test_template_renders(
    template: ChatTemplate, messages: list[dict[str, Any]], arguments: dict[str, Any], expected: str
) -> None:
    """The chat template writes Kimi-shaped prompts."""
    assert template.text(messages, **arguments) == expected


def test_control_tokens_end_the_vocabulary(template: ChatTemplate) -> None:
    """Control tokens are the last ids, in a fixed order, as in Kimi's vocabulary."""
    size = json.loads((MODEL / "config.json").read_text())["vocab_size"]
    assert template.tokenizer.get_vocab_size() == size
    assert [template.tokenizer.token_to_id(token) for token in CONTROL] == list(
        range(size - len(CONTROL), size)
    )


def test_tokenizer_eos_is_not_what_ends_a_turn(template: ChatTemplate) -> None:
    """The folder holds Kimi's trap: tokenizer.eos is [EOS], generation_config names <|im_end|>."""
    settings = json.loads((MODEL / "tokenizer_config.json").read_text())
    generation = json.loads((MODEL / "generation_config.json").read_text())
    assert settings["eos_token"] == "[EOS]"
    assert generation["eos_token_id"] == [template.tokenizer.token_to_id("<|im_end|>")]
    assert (generation["temperature"], generation["top_p"]) == (0.7, 0.95)


def test_transformers_loads_the_same_tokenizer(template: ChatTemplate) -> None:
    """AutoTokenizer, without remote code, gives the ids and prompts that the server uses."""
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL, trust_remote_code=False)
    assert tokenizer.encode(PROBE, add_special_tokens=False) == template.encode(PROBE)
    assert tokenizer.decode(template.encode(PROBE)) == PROBE
    for messages, arguments, _ in TEMPLATE_CASES.values():
        rendered = tokenizer.apply_chat_template(
            messages, tokenize=True, return_dict=False, add_generation_prompt=True, **arguments
        )
        assert rendered == template.prompt(messages, **arguments)


def test_folder_is_small() -> None:
    """The repository carries five megabytes of model, not more."""
    assert sum(path.stat().st_size for path in Path(MODEL).iterdir()) < 5_500_000
