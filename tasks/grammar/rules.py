"""What may follow what, as tables that the chat formats are put together from."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tasks.grammar.states import State, Symbol

Transitions = Mapping[tuple[State, Symbol], State]

THINKING: Final[Transitions] = MappingProxyType(
    {
        (State.MUST_OPEN, Symbol.OPEN): State.REASONING,
        (State.MAY_OPEN, Symbol.OPEN): State.REASONING,
        (State.REASONING, Symbol.CLOSE): State.CONTENT,
        (State.CONTENT, Symbol.END): State.COMPLETE,
        (State.TOOLS, Symbol.END): State.COMPLETE_TOOLS,
        (State.TOOLS, Symbol.TOOL_END): State.COMPLETE_TOOLS,
    }
)
SECTION_TOOLS: Final[Transitions] = MappingProxyType(
    {
        (State.CONTENT, Symbol.SECTION_BEGIN): State.SECTION,
        (State.SECTION, Symbol.CALL_BEGIN): State.CALL,
        (State.CALL, Symbol.CALL_ARGUMENT): State.ARGUMENT,
        (State.ARGUMENT, Symbol.CALL_END): State.MORE_CALLS,
        (State.MORE_CALLS, Symbol.CALL_BEGIN): State.CALL,
        (State.MORE_CALLS, Symbol.SECTION_END): State.TOOLS,
    }
)
BARE_TOOLS: Final[Transitions] = MappingProxyType(
    {
        (State.CONTENT, Symbol.CALL_BEGIN): State.BARE_CALL,
        (State.BARE_CALL, Symbol.CALL_END): State.TOOLS,
        (State.TOOLS, Symbol.CALL_BEGIN): State.BARE_CALL,
    }
)
KEYED_TOOLS: Final[Transitions] = MappingProxyType(
    {
        (State.BARE_CALL, Symbol.KEY): State.IN_KEY,
        (State.IN_KEY, Symbol.KEY_END): State.AFTER_KEY,
        (State.AFTER_KEY, Symbol.VALUE): State.IN_VALUE,
        (State.IN_VALUE, Symbol.VALUE_END): State.AFTER_VALUE,
        (State.AFTER_VALUE, Symbol.KEY): State.IN_KEY,
        (State.AFTER_VALUE, Symbol.CALL_END): State.TOOLS,
    }
)
OPEN_TOOLS: Final[Transitions] = MappingProxyType(
    {
        (State.CONTENT, Symbol.SECTION_BEGIN): State.OPEN_CALLS,
        (State.OPEN_CALLS, Symbol.SECTION_BEGIN): State.OPEN_CALLS,
        (State.OPEN_CALLS, Symbol.END): State.COMPLETE_TOOLS,
    }
)
NAMED_TOOLS: Final[Transitions] = MappingProxyType(
    {
        (State.CONTENT, Symbol.SECTION_BEGIN): State.OPEN_CALLS,
        (State.OPEN_CALLS, Symbol.INSIDE): State.CALL_ID,
        (State.OPEN_CALLS, Symbol.CALL_ARGUMENT): State.OPEN_ARGUMENTS,
        (State.CALL_ID, Symbol.CALL_ARGUMENT): State.OPEN_ARGUMENTS,
        (State.OPEN_ARGUMENTS, Symbol.SECTION_BEGIN): State.NEXT_NAME,
        (State.NEXT_NAME, Symbol.INSIDE): State.CALL_ID,
        (State.NEXT_NAME, Symbol.CALL_ARGUMENT): State.OPEN_ARGUMENTS,
        (State.OPEN_ARGUMENTS, Symbol.END): State.COMPLETE_TOOLS,
        (State.OPEN_CALLS, Symbol.END): State.COMPLETE_TOOLS,
    }
)
"""Mistral: name, id and arguments of one call after the other, or (older) one JSON list of all."""
MARKED_TOOLS: Final[Transitions] = MappingProxyType(
    {
        (State.CONTENT, Symbol.SECTION_BEGIN): State.AFTER_CALL,
        (State.AFTER_CALL, Symbol.CALL_BEGIN): State.IN_CALL,
        (State.IN_CALL, Symbol.KEY): State.IN_VALUE,
        (State.IN_VALUE, Symbol.KEY): State.IN_CALL,
        (State.IN_CALL, Symbol.CALL_BEGIN): State.AFTER_CALL,
        (State.AFTER_CALL, Symbol.SECTION_BEGIN): State.OPEN_CALLS,
        (State.OPEN_CALLS, Symbol.END): State.COMPLETE_TOOLS,
    }
)
"""DSML: one mark in every tag, so that the first of a kind opens and the second closes."""
FROM_REASONING: Final[Transitions] = MappingProxyType(
    {(State.REASONING, Symbol.SECTION_BEGIN): State.SECTION}
)
CHANNELS: Final[Transitions] = MappingProxyType(
    {
        (State.HEADER, Symbol.ANALYSIS): State.ANALYSIS_HEADER,
        (State.HEADER, Symbol.FINAL): State.FIRST_FINAL_HEADER,
        (State.HEADER, Symbol.COMMENTARY): State.COMMENT_HEADER,
        (State.HEADER, Symbol.CALLING): State.CALL_HEADER,
        (State.ANALYSIS_HEADER, Symbol.MESSAGE): State.REASONING,
        (State.REASONING, Symbol.BLOCK_END): State.BETWEEN,
        (State.BETWEEN, Symbol.START): State.NEXT_HEADER,
        (State.NEXT_HEADER, Symbol.ANALYSIS): State.ANALYSIS_HEADER,
        (State.NEXT_HEADER, Symbol.FINAL): State.FINAL_HEADER,
        (State.NEXT_HEADER, Symbol.COMMENTARY): State.COMMENT_HEADER,
        (State.NEXT_HEADER, Symbol.CALLING): State.CALL_HEADER,
        (State.ADDRESSED, Symbol.ANALYSIS): State.NAMED_CALL_HEADER,
        (State.ADDRESSED, Symbol.COMMENTARY): State.NAMED_CALL_HEADER,
        (State.ADDRESSED, Symbol.CALLING): State.NAMED_CALL_HEADER,
        (State.FIRST_FINAL_HEADER, Symbol.CONSTRAIN): State.FIRST_FINAL_FORMAT,
        (State.FINAL_HEADER, Symbol.CONSTRAIN): State.FINAL_FORMAT,
        (State.FIRST_FINAL_HEADER, Symbol.MESSAGE): State.CONTENT,
        (State.FIRST_FINAL_FORMAT, Symbol.MESSAGE): State.CONTENT,
        (State.FINAL_HEADER, Symbol.MESSAGE): State.CONTENT,
        (State.FINAL_FORMAT, Symbol.MESSAGE): State.CONTENT,
        (State.COMMENT_HEADER, Symbol.MESSAGE): State.COMMENT,
        (State.COMMENT, Symbol.BLOCK_END): State.BETWEEN,
        (State.CALL_HEADER, Symbol.CONSTRAIN): State.CALL_FORMAT,
        (State.NAMED_CALL_HEADER, Symbol.CONSTRAIN): State.CALL_FORMAT,
        (State.NAMED_CALL_HEADER, Symbol.MESSAGE): State.OPEN_CALLS,
        (State.CALL_FORMAT, Symbol.MESSAGE): State.OPEN_CALLS,
        (State.CALL_HEADER, Symbol.MESSAGE): State.OPEN_CALLS,
        (State.OPEN_CALLS, Symbol.TOOL_END): State.COMPLETE_TOOLS,
        (State.CONTENT, Symbol.END): State.COMPLETE,
    }
)
CHANNELS_BEFORE: Final[Transitions] = MappingProxyType(
    {
        **{move: state for move, state in CHANNELS.items() if move[0] is not State.ADDRESSED},
        (State.FIRST_FINAL_HEADER, Symbol.CONSTRAIN): State.FIRST_FINAL_HEADER,
        (State.FINAL_HEADER, Symbol.CONSTRAIN): State.FINAL_HEADER,
        (State.COMMENT_HEADER, Symbol.CONSTRAIN): State.CALL_FORMAT,
    }
)
OPEN_TOOLS_BEFORE: Final[Transitions] = MappingProxyType(
    {
        (State.CONTENT, Symbol.SECTION_BEGIN): State.OPEN_CALLS,
        (State.OPEN_CALLS, Symbol.SECTION_BEGIN): State.OPEN_CALLS,
        (State.OPEN_CALLS, Symbol.INSIDE): State.OPEN_CALLS,
        (State.OPEN_CALLS, Symbol.CALL_ARGUMENT): State.OPEN_CALLS,
        (State.OPEN_CALLS, Symbol.END): State.COMPLETE_TOOLS,
    }
)
"""Rules by which earlier versions judged, for the audit of what they stored.

They took any text in a header of gpt-oss, a call that says nothing, and parts of a call in any order; and no
call whose role names the tool.
"""
