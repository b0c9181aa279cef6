"""What an id can mean and where in a turn it can stand: the alphabet and the states of every chat format."""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final, Literal

from tasks.rows.verdicts import Code


class Symbol(IntEnum):
    """What an id means to the grammar. TEXT is every ordinary id."""

    TEXT = 0
    OPEN = 1
    CLOSE = 2
    END = 3
    TOOL_END = 4  # ends the turn, and only after tool calls
    TURN = 5  # starts somebody's turn: belongs into prompts only
    SECTION_BEGIN = 6
    SECTION_END = 7
    CALL_BEGIN = 8
    CALL_ARGUMENT = 9
    CALL_END = 10
    INSIDE = 11  # punctuation of a tool call
    KEY = 12
    KEY_END = 13
    VALUE = 14
    VALUE_END = 15
    ANALYSIS = 16
    COMMENTARY = 17
    CALLING = 18
    FINAL = 19
    MESSAGE = 20
    BLOCK_END = 21
    START = 22
    CONSTRAIN = 23
    CONTROL = 24  # any other control token: a model has no business to emit it
    SPELLED = 25  # first of the ordinary ids that spell an opener or closer; else TEXT


class State(IntEnum):
    """Where in a turn the next id stands."""

    MUST_OPEN = 0
    MAY_OPEN = 1
    REASONING = 2
    CONTENT = 3
    SECTION = 4
    CALL = 5
    ARGUMENT = 6
    MORE_CALLS = 7
    BARE_CALL = 8  # a call that no section wraps, before its arguments
    IN_KEY = 9
    AFTER_KEY = 10
    IN_VALUE = 11
    AFTER_VALUE = 12
    IN_CALL = 13  # DSML: between the tags of one call
    AFTER_CALL = 14  # DSML: between calls
    OPEN_CALLS = 15  # tool calls that only the end of the turn closes
    TOOLS = 16
    HEADER = 17
    ANALYSIS_HEADER = 18
    BETWEEN = 19
    NEXT_HEADER = 20
    FIRST_FINAL_HEADER = 21
    FINAL_HEADER = 22
    COMMENT_HEADER = 23
    COMMENT = 24
    CALL_HEADER = 25
    CALL_FORMAT = 26
    COMPLETE = 27
    COMPLETE_TOOLS = 28
    ADDRESSED = 29  # a header whose role already names the tool: read from its text, nothing stands here
    NAMED_CALL_HEADER = 30  # of a call that the role addressed
    FIRST_FINAL_FORMAT = 31
    FINAL_FORMAT = 32
    CALL_ID = 33
    OPEN_ARGUMENTS = 34  # of a call that only the next call or the end of the turn closes
    NEXT_NAME = 35  # of a call behind another


Mode = Literal["open", "closed", "must", "may", "never", "header"]
"""What the end of a prompt says of reasoning: it is open; it is closed (off); the model must open it, or may;
the format has none; the format has headers (gpt-oss)."""

FIRST: Final[Mapping[Mode, State]] = MappingProxyType(
    {
        "open": State.REASONING,
        "closed": State.CONTENT,
        "never": State.CONTENT,
        "must": State.MUST_OPEN,
        "may": State.MAY_OPEN,
        "header": State.HEADER,
    }
)
"""The state in which an output begins."""

SEGMENT: Final[Mapping[State, str]] = MappingProxyType(
    {
        State.MUST_OPEN: "opener",
        State.MAY_OPEN: "content",
        State.REASONING: "reasoning",
        State.CONTENT: "content",
        State.COMMENT: "content",
        State.HEADER: "opener",
        State.ANALYSIS_HEADER: "opener",
        State.FIRST_FINAL_HEADER: "opener",
        State.BETWEEN: "closer",
        State.NEXT_HEADER: "closer",
        State.FINAL_HEADER: "closer",
        State.COMMENT_HEADER: "closer",
        State.FIRST_FINAL_FORMAT: "opener",
        State.FINAL_FORMAT: "closer",
    }
)
"""Kind of the ids that stand in a state; what is missing here is `tool_calls`."""

OWN_SEGMENT: Final[Mapping[Symbol, str]] = MappingProxyType(
    {
        Symbol.OPEN: "opener",
        Symbol.CLOSE: "closer",
        Symbol.END: "end",
        Symbol.TOOL_END: "end",
        Symbol.BLOCK_END: "closer",
        Symbol.START: "closer",
    }
)
"""Kind of a control id itself; what is missing here takes the kind of the state that it leads to."""

ENDS_SEGMENT: Final = frozenset({Symbol.MESSAGE, Symbol.CONSTRAIN})
"""Control ids that still belong to the state that they end: the last of a header."""

CUT: Final[Mapping[State, Code]] = MappingProxyType(
    {
        State.MUST_OPEN: Code.CUT_IN_REASONING,
        State.REASONING: Code.CUT_IN_REASONING,
        State.HEADER: Code.CUT_IN_REASONING,
        State.ANALYSIS_HEADER: Code.CUT_IN_REASONING,
        State.BETWEEN: Code.CUT_IN_REASONING,
        State.NEXT_HEADER: Code.CUT_IN_REASONING,
        State.MAY_OPEN: Code.CUT_IN_CONTENT,
        State.CONTENT: Code.CUT_IN_CONTENT,
        State.FIRST_FINAL_HEADER: Code.CUT_IN_CONTENT,
        State.FINAL_HEADER: Code.CUT_IN_CONTENT,
        State.FIRST_FINAL_FORMAT: Code.CUT_IN_CONTENT,
        State.FINAL_FORMAT: Code.CUT_IN_CONTENT,
        State.COMMENT_HEADER: Code.CUT_IN_CONTENT,
        State.COMMENT: Code.CUT_IN_CONTENT,
    }
)
"""Code of a row that the cap cut in a state; what is missing here is cut_in_tools."""

BLANK_ONLY: Final[Mapping[State, Code]] = MappingProxyType(
    {
        State.MUST_OPEN: Code.OPENER_MISSING,
        State.SECTION: Code.TOOLS_UNBALANCED,
        State.MORE_CALLS: Code.TOOLS_UNBALANCED,
        State.AFTER_KEY: Code.TOOLS_UNBALANCED,
        State.AFTER_VALUE: Code.TOOLS_UNBALANCED,
        State.TOOLS: Code.TOOLS_UNBALANCED,
        State.BETWEEN: Code.CONTROL_UNEXPECTED,
    }
)
"""States in which only white space may stand, with the code for anything else."""

FAULT: Final[Mapping[Symbol, Code]] = MappingProxyType(
    {
        Symbol.OPEN: Code.OPENER_IN_OUTPUT,
        Symbol.CLOSE: Code.CLOSER_REPEATED,
        Symbol.TURN: Code.TURN_START_INSIDE,
        Symbol.SECTION_BEGIN: Code.TOOLS_UNBALANCED,
        Symbol.SECTION_END: Code.TOOLS_UNBALANCED,
        Symbol.CALL_BEGIN: Code.TOOLS_UNBALANCED,
        Symbol.CALL_ARGUMENT: Code.TOOLS_UNBALANCED,
        Symbol.CALL_END: Code.TOOLS_UNBALANCED,
        Symbol.INSIDE: Code.TOOLS_UNBALANCED,
        Symbol.KEY: Code.TOOLS_UNBALANCED,
        Symbol.KEY_END: Code.TOOLS_UNBALANCED,
        Symbol.VALUE: Code.TOOLS_UNBALANCED,
        Symbol.VALUE_END: Code.TOOLS_UNBALANCED,
        Symbol.END: Code.TOOLS_UNBALANCED,
        Symbol.TOOL_END: Code.TOOLS_UNBALANCED,
    }
)
"""Code of a symbol that a state does not expect; what is missing here is control_unexpected."""

STATE_FAULT: Final[Mapping[tuple[State, Symbol], Code]] = MappingProxyType(
    {
        (State.MUST_OPEN, Symbol.END): Code.OPENER_MISSING,
        (State.MUST_OPEN, Symbol.TOOL_END): Code.OPENER_MISSING,
        (State.MUST_OPEN, Symbol.CLOSE): Code.OPENER_MISSING,
        (State.MUST_OPEN, Symbol.SECTION_BEGIN): Code.OPENER_MISSING,
        (State.MUST_OPEN, Symbol.CALL_BEGIN): Code.OPENER_MISSING,
        (State.MAY_OPEN, Symbol.CLOSE): Code.OPENER_MISSING,
        (State.REASONING, Symbol.END): Code.CLOSER_MISSING,
        (State.REASONING, Symbol.TOOL_END): Code.CLOSER_MISSING,
        (State.HEADER, Symbol.END): Code.OPENER_MISSING,
        (State.HEADER, Symbol.MESSAGE): Code.OPENER_MISSING,
        (State.HEADER, Symbol.BLOCK_END): Code.OPENER_MISSING,
        (State.ANALYSIS_HEADER, Symbol.END): Code.OPENER_MISSING,
        (State.REASONING, Symbol.START): Code.CLOSER_MISSING,
        (State.REASONING, Symbol.ANALYSIS): Code.OPENER_IN_OUTPUT,
        (State.REASONING, Symbol.FINAL): Code.CLOSER_MISSING,
        (State.REASONING, Symbol.COMMENTARY): Code.CLOSER_MISSING,
        (State.REASONING, Symbol.CALLING): Code.CLOSER_MISSING,
        (State.BETWEEN, Symbol.BLOCK_END): Code.CLOSER_REPEATED,
        (State.BETWEEN, Symbol.END): Code.CONTENT_EMPTY,
        (State.NEXT_HEADER, Symbol.END): Code.CONTENT_EMPTY,
        (State.CONTENT, Symbol.START): Code.TURN_START_INSIDE,
        (State.CONTENT, Symbol.BLOCK_END): Code.CLOSER_REPEATED,
        (State.COMMENT_HEADER, Symbol.CONSTRAIN): Code.TOOLS_UNBALANCED,
    }
)
"""Where a state knows better than FAULT."""
