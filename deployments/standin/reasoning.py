"""What --reasoning-parser and --tool-call-parser do with the text of a chat completion; never with ids."""

import re
from typing import Any

OPENER, CLOSER = "<think>", "</think>"
_SECTION = re.compile(r"<\|tool_calls_section_begin\|>(.*?)(?:<\|tool_calls_section_end\|>|$)", re.DOTALL)
_CALL = re.compile(
    r"<\|tool_call_begin\|>(.*?)<\|tool_call_argument_begin\|>(.*?)<\|tool_call_end\|>", re.DOTALL
)


def split_reasoning(text: str) -> tuple[str, str]:
    """(reasoning, content) at the first closer; without one, or with a tool section ahead of it, see below.

    Text that never closes is all reasoning, except that a tool section closes it.
    """
    text = text.removeprefix(OPENER)
    reasoning, closer, content = text.partition(CLOSER)
    if closer:
        return reasoning, content
    section = text.find("<|tool_calls_section_begin|>")
    return (text, "") if section < 0 else (text[:section], text[section:])


def split_calls(content: str) -> tuple[str, list[dict[str, Any]]]:
    """(content without tool sections, tool calls in OpenAI's form)."""
    calls = [
        {
            "id": name,
            "type": "function",
            "index": index,
            "function": {
                "name": name.removeprefix("functions.").rpartition(":")[0] or name,
                "arguments": arguments,
            },
        }
        for index, (name, arguments) in enumerate(
            call for section in _SECTION.findall(content) for call in _CALL.findall(section)
        )
    ]
    return (_SECTION.sub("", content), calls) if calls else (content, [])
