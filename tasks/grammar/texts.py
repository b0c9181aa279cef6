"""What must stand, as text, between two control ids: the words of headers and tags, and where something must.

Control ids alone do not tell `assistant` from `user`, an opening tag from a closing one, or a call from none.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import attrs

from tasks.grammar.states import State, Symbol
from tasks.rows.verdicts import Code


@attrs.frozen(slots=True)
class Form:
    """One thing that may stand in front of a control id.

    Args:
        pattern: of the whole text; None for anything but white space.
        example: a text of that pattern, from which it is told whether a row that was cut began one.
        leads: state in which the control id is then read; None for the one in which the text stands.
    """

    pattern: re.Pattern[str] | None = None
    example: str = ""
    leads: State | None = None

    def fits(self, text: str) -> bool:
        """Return whether this may stand in front of a control id."""
        return bool(text.strip()) if self.pattern is None else self.pattern.fullmatch(text) is not None

    def begins(self, text: str) -> bool:
        """Return whether this may still become what may stand there: some end of the example completes it."""
        return self.pattern is None or any(
            self.pattern.fullmatch(text + self.example[start:]) for start in range(len(self.example), -1, -1)
        )


Texts = Mapping[tuple[State, Symbol], tuple[Form, ...]]


def _form(pattern: str, example: str = "", leads: State | None = None) -> Form:
    return Form(re.compile(pattern, re.DOTALL), example, leads)


SOMETHING: Final = (Form(),)

TEXT_FAULT: Final[Mapping[State, Code]] = MappingProxyType(
    {
        State.HEADER: Code.OPENER_MISSING,
        State.NEXT_HEADER: Code.TURN_START_INSIDE,
        State.ANALYSIS_HEADER: Code.CONTROL_UNEXPECTED,
        State.COMMENT_HEADER: Code.CONTROL_UNEXPECTED,
        State.FIRST_FINAL_HEADER: Code.CONTROL_UNEXPECTED,
        State.FIRST_FINAL_FORMAT: Code.CONTROL_UNEXPECTED,
        State.FINAL_HEADER: Code.CONTROL_UNEXPECTED,
        State.FINAL_FORMAT: Code.CONTROL_UNEXPECTED,
        State.COMMENT: Code.CONTENT_EMPTY,
    }
)
"""Code of a text that fits no form; what is missing here is tools_unbalanced."""

_TO, _FORMAT, _CALL = r" to=[\w.-]+", r"[\w./+-]+ *", "(?:commentary|analysis)"
_CHANNEL = (Symbol.ANALYSIS, Symbol.COMMENTARY, Symbol.CALLING, Symbol.FINAL)
_FINAL = (State.FIRST_FINAL_HEADER, State.FINAL_HEADER)
HEADERS: Final[Texts] = MappingProxyType(
    {
        **{
            (State.HEADER, symbol): (_form(" *"), _form(f"{_TO} *", " to=a", State.ADDRESSED))
            for symbol in _CHANNEL
        },
        **{
            (State.NEXT_HEADER, symbol): (
                _form("assistant *", "assistant"),
                _form(f"assistant{_TO} *", "assistant to=a", State.ADDRESSED),
            )
            for symbol in _CHANNEL
        },
        (State.ANALYSIS_HEADER, Symbol.MESSAGE): (_form("analysis *", "analysis"),),
        (State.COMMENT_HEADER, Symbol.MESSAGE): (_form("commentary *", "commentary"),),
        **{
            (state, symbol): (_form("final *", "final"),)
            for state in _FINAL
            for symbol in (Symbol.MESSAGE, Symbol.CONSTRAIN)
        },
        **{
            (state, Symbol.MESSAGE): (_form(f" ?{_FORMAT}", "json"),)
            for state in (State.FIRST_FINAL_FORMAT, State.FINAL_FORMAT, State.CALL_FORMAT)
        },
        (State.CALL_HEADER, Symbol.CONSTRAIN): (_form(f"{_CALL}{_TO} *", " to=a"),),
        (State.CALL_HEADER, Symbol.MESSAGE): (_form(f"{_CALL}{_TO} *(?: {_FORMAT})?", " to=a"),),
        (State.NAMED_CALL_HEADER, Symbol.CONSTRAIN): (_form(f"{_CALL} *"),),
        (State.NAMED_CALL_HEADER, Symbol.MESSAGE): (_form(f"{_CALL} *(?: {_FORMAT})?"),),
        (State.COMMENT, Symbol.BLOCK_END): SOMETHING,
        (State.OPEN_CALLS, Symbol.TOOL_END): SOMETHING,
    }
)
"""gpt-oss: role, channel, recipient (in front of the channel or behind it) and format of a message."""

SPOKEN: Final[Texts] = MappingProxyType(
    {(State.OPEN_CALLS, symbol): SOMETHING for symbol in (Symbol.END, Symbol.SECTION_BEGIN)}
)
"""A call is not empty."""

NAMED: Final[Texts] = MappingProxyType(
    {
        **{
            (state, symbol): SOMETHING
            for state in (State.OPEN_CALLS, State.NEXT_NAME)
            for symbol in (Symbol.INSIDE, Symbol.CALL_ARGUMENT)
        },
        (State.CALL_ID, Symbol.CALL_ARGUMENT): SOMETHING,
        (State.OPEN_ARGUMENTS, Symbol.SECTION_BEGIN): SOMETHING,
        (State.OPEN_ARGUMENTS, Symbol.END): SOMETHING,
        (State.OPEN_CALLS, Symbol.END): (_form(r"\s*\[.*", "["),),
    }
)
"""Mistral: name, id and arguments are there, or a JSON list."""

KEYED: Final[Texts] = MappingProxyType({(State.IN_KEY, Symbol.KEY_END): SOMETHING})
"""GLM: an argument has a name."""

INVOKED: Final[Texts] = MappingProxyType(
    {(State.BARE_CALL, Symbol.CALL_END): (_form(r'.*<invoke name="[^"]+">.*', '<invoke name="a">'),)}
)
"""MiniMax: the calls stand in one block, and it holds at least one."""

_SECTION, _INVOKE = "(?:tool_calls|function_calls)", 'invoke name="[^"]+"'
_KEY = 'parameter name="[^"]+"(?: string="(?:true|false)")?'
MARKS: Final[Texts] = MappingProxyType(
    {
        (State.CONTENT, Symbol.SECTION_BEGIN): (_form(".*<", "<"),),
        (State.AFTER_CALL, Symbol.CALL_BEGIN): (_form(rf"(?:{_SECTION}|invoke)>\s*<", ">\n<"),),
        (State.AFTER_CALL, Symbol.SECTION_BEGIN): (_form(r"invoke>\s*</", ">\n</"),),
        (State.IN_CALL, Symbol.KEY): (
            _form(rf"{_INVOKE}>\s*<", ' name="a">\n<'),
            _form(r"parameter>\s*<", ">\n<"),
        ),
        (State.IN_CALL, Symbol.CALL_BEGIN): (
            _form(rf"{_INVOKE}>\s*</", ' name="a">\n</'),
            _form(r"parameter>\s*</", ">\n</"),
        ),
        (State.IN_VALUE, Symbol.KEY): tuple(
            _form(rf"{_KEY}>.*</", rest)
            for rest in (' name="a">1</', ' string="true">1</', ' string="false">1</')
        ),
        (State.OPEN_CALLS, Symbol.END): (_form(rf"{_SECTION}>\s*", ">"),),
    }
)
"""DSML: which tag is an opening one, which a closing one, and nothing between them."""
