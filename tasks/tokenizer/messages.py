"""Messages as one template wants them: reasoning under its own field, text as text, arguments in its form."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tasks.errors import RowError
from tasks.rows.verdicts import Code
from tasks.tokenizer.dialect import REASONING_FIELDS, Dialect, Message

THINK_PAIRS = (("<think>", "</think>"), ("<mm:think>", "</mm:think>"), ("[THINK]", "[/THINK]"))
"""How reasoning is written inline in recorded answers."""


def plain_message(message: Mapping[str, Any], index: int) -> Message:
    """Return a message with string content, reasoning under `reasoning_content` and parsed nothing else.

    Content parts of type text are joined; inline `<think>…</think>` of an assistant moves to the reasoning
    (`Kimi` would otherwise render a second, empty block in front of it).

    Raises:
        RowError: `bad_record` when the role is missing or the content is not text.
    """
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RowError(Code.BAD_RECORD, f"message {index}: expected a role, got {role!r}", index)
    content = _content(message.get("content"), index)
    reasoning = next((message[f] for f in REASONING_FIELDS if isinstance(message.get(f), str)), "")
    if role == "assistant" and not reasoning:
        reasoning, content = split_inline(content)
    kept = {k: v for k, v in message.items() if k not in (*REASONING_FIELDS, "content") and v is not None}
    if role == "assistant":
        kept["reasoning_content"] = reasoning
    if not kept.get("tool_calls"):
        kept.pop("tool_calls", None)
    return {**kept, "content": content}


def _content(content: Any, index: int) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        texts = [part if isinstance(part, str) else _part_text(part) for part in content]
        if all(text is not None for text in texts):
            return "".join(text for text in texts if text is not None)
    raise RowError(Code.BAD_RECORD, f"message {index}: expected text content, got {_short(content)}", index)


def _part_text(part: Any) -> str | None:
    if isinstance(part, Mapping) and part.get("type", "text") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    return None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"


def split_inline(content: str) -> tuple[str, str]:
    """Return (reasoning, answer) of a recorded answer with one leading block of inline reasoning."""
    for opener, closer in THINK_PAIRS:
        body = content.lstrip()
        if content.count(closer) == 1 and content.count(opener) == body.startswith(opener):
            reasoning, answer = body.removeprefix(opener).split(closer)
            return reasoning.strip("\n"), answer.lstrip("\n")
    return "", content


def for_template(message: Message, dialect: Dialect) -> Message:
    """Return a plain message as the dialect's template reads it.

    Reasoning goes under exactly the fields that the template reads: transformers 5.19 and earlier ignore the
    others silently, 5.24 aliases them; so both give the same prompt.
    """
    shaped = {key: value for key, value in message.items() if key != "reasoning_content"}
    if message.get("reasoning_content"):
        shaped |= dict.fromkeys(dialect.reasoning_fields, message["reasoning_content"])
    if "tool_calls" in shaped:
        shaped["tool_calls"] = [_call(call, dialect) for call in shaped["tool_calls"]]
    return shaped


def _call(call: Mapping[str, Any], dialect: Dialect) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping):
        function = {key: call[key] for key in ("name", "arguments") if key in call}
    arguments = function.get("arguments", {})
    if dialect.arguments == "mapping" and isinstance(arguments, str):
        arguments = _parsed(arguments)
    elif dialect.arguments == "text" and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    rest = {key: value for key, value in call.items() if key not in ("name", "arguments")}
    return {"type": "function", **rest, "function": {**function, "arguments": arguments}}


def _parsed(arguments: str) -> Any:
    try:
        parsed = json.loads(arguments) if arguments.strip() else {}
    except ValueError as error:
        raise RowError(
            Code.BAD_RECORD, f"tool arguments: expected a JSON object, got {_short(arguments)}"
        ) from error
    if not isinstance(parsed, Mapping):
        raise RowError(Code.BAD_RECORD, f"tool arguments: expected a JSON object, got {_short(arguments)}")
    return parsed


def map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Return `value` with every string in it changed, keys included; roles and types are left alone."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {
            change(key) if isinstance(key, str) else key: (
                item if key in ("role", "type") and isinstance(item, str) else map_strings(item, change)
            )
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [map_strings(item, change) for item in value]
    return value
