"""The chat formats as they are published, each as one pattern: a second opinion on what an output may be.

Written from the formats, not from the checker, of which nothing is used here. A row of ids is a text, one
character an id: a control token has its own, an ordinary id of `byte_families` is its byte. What a pattern
matches whole has ended as it should, and what it matches in part is a beginning of such a row. Named groups
are the segments.
"""

from collections.abc import Mapping
from typing import Any

import attrs
import regex

CONTROLS = 0xE000
"""First of the characters that stand for control tokens."""

Spans = list[tuple[str, int, int]]

_T, _S = r"[^\ue000-\uefff]", r"[ \n]"
_SAID = rf"{_S}*+[^\ue000-\uefff \n]{_T}*+"
"""Text that is not only white space."""

_CONTENT = rf"(?P<content>{_SAID})(?P<end>END)"
_CALLS_THEN = rf"(?P<content>{_T}*+)(?P<tool_calls>CALLS{_S}*+)(?P<end>ENDS)"
_BODY = rf"(?:{_CONTENT}|{_CALLS_THEN})"
_THOUGHT = rf"(?P<reasoning>{_SAID})(?P<closer>⟨CLOSE⟩)"
_OPENED = rf"(?P<opener>{_S}*+⟨OPEN⟩){_THOUGHT}"

_MODES = {
    "open": _THOUGHT + _BODY,
    "must": _OPENED + _BODY,
    "may": rf"(?:{_OPENED})?{_BODY}",
    "closed": _BODY,
    "never": _BODY,
}

_SECTION = rf"⟨BEGIN⟩(?:{_S}*+⟨CALL⟩{_SAID}⟨ARGUMENTS⟩{_SAID}⟨/CALL⟩)+{_S}*+⟨END⟩"
_BARE = rf"⟨CALL⟩{_SAID}⟨/CALL⟩(?:{_S}*+⟨CALL⟩{_SAID}⟨/CALL⟩)*"
_INVOKE = r'<invoke name="[^"\ue000-\uefff]+">'
_PAIR = rf"⟨KEY⟩{_SAID}⟨/KEY⟩{_S}*+⟨VALUE⟩{_T}*+⟨/VALUE⟩{_S}*+"
_KEYED_CALL = rf"⟨CALL⟩{_SAID}(?:{_PAIR})*⟨/CALL⟩"
_TAG = (
    rf"<⟨DSML⟩parameter name=\"[^\"\ue000-\uefff]+\"(?: string=\"(?:true|false)\")?>{_T}*</⟨DSML⟩parameter>"
)
_INVOCATION = rf"<⟨DSML⟩invoke name=\"[^\"\ue000-\uefff]+\">{_S}*+(?:{_TAG}{_S}*+)*</⟨DSML⟩invoke>{_S}*+"
_DSML = (
    rf"(?P<content>{_T}*<)(?P<tool_calls>⟨DSML⟩tool_calls>{_S}*+(?:{_INVOCATION})+</⟨DSML⟩tool_calls>{_S}*+)"
    "(?P<end>ENDS)"
)
_NAMED = rf"(?:⟨CALL⟩{_SAID}(?:⟨ID⟩{_SAID})?⟨ARGUMENTS⟩{_SAID})+|⟨CALL⟩{_S}*+\[{_T}*+"

_TO, _WORD = r" to=[\w.-]+", r"[\w./+-]+"
_FORMAT = rf"(?: ++{_WORD}| *+⟨CONSTRAIN⟩ ?{_WORD})? *+⟨MESSAGE⟩"
_CALLING = (
    rf"(?:(?P<header>{_TO} *+)(?P<tool_calls>⟨CHANNEL⟩(?:analysis|commentary){_FORMAT}{_SAID})"
    rf"|(?P<header> *+)(?P<tool_calls>⟨CHANNEL⟩(?:analysis|commentary){_TO}{_FORMAT}{_SAID}))(?P<end>⟨CALL⟩)"
)
_ANALYSIS = rf"(?P<header> *+⟨CHANNEL⟩analysis *+⟨MESSAGE⟩)(?P<reasoning>{_SAID})"
_PREAMBLE = rf"(?P<header> *+⟨CHANNEL⟩commentary *+⟨MESSAGE⟩)(?P<content>{_SAID})"
_FINAL = (
    rf"(?P<header> *+⟨CHANNEL⟩final *+(?:⟨CONSTRAIN⟩ ?{_WORD} *+)?⟨MESSAGE⟩)(?P<content>{_SAID})(?P<end>END)"
)
_HARMONY = (
    rf"(?:(?:{_ANALYSIS}|{_PREAMBLE})(?P<header>⟨/MESSAGE⟩{_S}*+⟨START⟩assistant))*(?:{_FINAL}|{_CALLING})"
)


@attrs.frozen
class Published:
    """One format.

    Args:
        controls: what the pattern calls a control token, to the token's text.
        calls: what tool calls look like.
        ends: texts that end a turn, after calls too.
        call_ends: those that end it after calls only.
        whole: the pattern of an output, where it is not reasoning and then content or calls.
        text: control tokens that may stand anywhere, like a word.
        holds: what the text of each call must hold.
    """

    controls: Mapping[str, str]
    calls: str = ""
    ends: tuple[str, ...] = ()
    call_ends: tuple[str, ...] = ()
    whole: str = ""
    text: tuple[str, ...] = ()
    holds: str = ""


_THINK = {"OPEN": "<think>", "CLOSE": "</think>"}
FORMATS = {
    "kimi": Published(
        {
            **_THINK,
            "BEGIN": "<|tool_calls_section_begin|>",
            "END": "<|tool_calls_section_end|>",
            "CALL": "<|tool_call_begin|>",
            "ARGUMENTS": "<|tool_call_argument_begin|>",
            "/CALL": "<|tool_call_end|>",
        },
        _SECTION,
        ("<|im_end|>",),
    ),
    "chatml": Published(
        _THINK | {"CALL": "<tool_call>", "/CALL": "</tool_call>"}, _BARE, ("<|im_end|>", "<|endoftext|>")
    ),
    "deepseek": Published(
        {
            **_THINK,
            "BEGIN": "<｜tool▁calls▁begin｜>",
            "END": "<｜tool▁calls▁end｜>",
            "CALL": "<｜tool▁call▁begin｜>",
            "ARGUMENTS": "<｜tool▁sep｜>",
            "/CALL": "<｜tool▁call▁end｜>",
        },
        _SECTION,
        ("<｜end▁of▁sentence｜>",),
    ),
    "dsml": Published(
        _THINK | {"DSML": "｜DSML｜"},
        "",
        ("<｜end▁of▁sentence｜>",),
        whole=f"{_THOUGHT}(?:{_CONTENT}|{_DSML})",
    ),
    "glm": Published(
        {
            **_THINK,
            "CALL": "<tool_call>",
            "/CALL": "</tool_call>",
            "KEY": "<arg_key>",
            "/KEY": "</arg_key>",
            "VALUE": "<arg_value>",
            "/VALUE": "</arg_value>",
        },
        rf"{_KEYED_CALL}(?:{_S}*+{_KEYED_CALL})*",
        ("<|endoftext|>", "<|user|>"),
        ("<|observation|>",),
    ),
    "minimax-m2": Published(
        _THINK | {"CALL": "<minimax:tool_call>", "/CALL": "</minimax:tool_call>"},
        _BARE,
        ("[e~[",),
        holds=_INVOKE,
    ),
    "minimax-m3": Published(
        {"OPEN": "<mm:think>", "CLOSE": "</mm:think>", "CALL": "<tool_call>", "/CALL": "</tool_call>"},
        _BARE,
        ("[e~[",),
        text=("]<]minimax[>[",),
        holds=_INVOKE,
    ),
    "gpt-oss": Published(
        {
            "START": "<|start|>",
            "CHANNEL": "<|channel|>",
            "CONSTRAIN": "<|constrain|>",
            "MESSAGE": "<|message|>",
            "/MESSAGE": "<|end|>",
            "CALL": "<|call|>",
        },
        "",
        ("<|return|>", "<|endoftext|>"),
        whole=_HARMONY,
    ),
    "llama-3": Published(
        {"CALL": "<|python_tag|>"}, rf"(?:⟨CALL⟩{_SAID})+", ("<|eot_id|>", "<|end_of_text|>", "<|eom_id|>")
    ),
    "mistral": Published(
        {
            "OPEN": "[THINK]",
            "CLOSE": "[/THINK]",
            "CALL": "[TOOL_CALLS]",
            "ID": "[CALL_ID]",
            "ARGUMENTS": "[ARGS]",
        },
        f"(?:{_NAMED})",
        ("</s>",),
    ),
}


class Format:
    """One format in one mode over one vocabulary.

    Args:
        published: the format.
        mode: who opens reasoning: `open`, `must`, `may`, `closed`, `never`; `header` for gpt-oss.
        control_ids: text and id of every control token.
        bytes: character of each ordinary id.
    """

    def __init__(
        self, published: Published, mode: str, control_ids: Mapping[str, int], bytes: Mapping[int, str]
    ) -> None:
        self._chars = dict(bytes)
        for number, (text, id) in enumerate(control_ids.items()):
            first = 0x2460 if text in published.text else CONTROLS
            self._chars[id] = chr(first + number)
        inside = (*published.text, published.controls.get("DSML"))  # of a text, of a tag
        self.controls = frozenset(self._chars[id] for text, id in control_ids.items() if text not in inside)
        named = {
            name: self._chars[control_ids[text]]
            for name, text in published.controls.items()
            if text in control_ids
        }
        ends = [self._chars[control_ids[text]] for text in published.ends]
        calls_end = ends + [self._chars[control_ids[text]] for text in published.call_ends]
        self.end_chars = frozenset(calls_end) | {named["CALL"]} if mode == "header" else frozenset(calls_end)
        pattern = published.whole or _MODES[mode]
        if published is FORMATS["kimi"] and mode in ("open", "must"):  # straight out of reasoning
            pattern += "|" + (rf"(?P<opener>{_S}*+⟨OPEN⟩)" if mode == "must" else "")
            pattern += rf"(?P<reasoning>{_T}*+)(?P<tool_calls>CALLS{_S}*+)(?P<end>ENDS)"
        for name, text in (("CALLS", published.calls), ("ENDS", f"[{''.join(calls_end)}]")):
            pattern = regex.sub(rf"(?<![⟨/\w]){name}(?![⟩\w])", lambda _, text=text: text, pattern)
        pattern = regex.sub(r"(?<![⟨/\w])END(?![⟩\w])", f"[{''.join(ends)}]", pattern)
        for name in sorted(named, key=len, reverse=True):
            pattern = pattern.replace(f"⟨{name}⟩", named[name])
        self._calls: Any = regex.compile(f"{named.get('CALL')}({_T}*){named.get('/CALL')}", regex.DOTALL)
        self._holds: Any = regex.compile(published.holds, regex.DOTALL)
        self._pattern: Any = regex.compile(regex.sub("⟨[^⟩]+⟩", "(?!)", pattern), regex.DOTALL)

    def text(self, ids: list[int]) -> str:
        """Return ids as this module's text."""
        return "".join([self._chars[id] for id in ids])

    def ended(self, text: str) -> Spans | None:
        """Return the segments of an output that ended, None for one that is not of the format."""
        match = self._pattern.fullmatch(text)
        if match is None or not self._say_it(text):
            return None
        spans = [(name, *span) for name in match.re.groupindex for span in match.spans(name)]
        return sorted((span for span in spans if span[1] < span[2]), key=lambda span: span[1])

    def begins(self, text: str) -> bool:
        """Return whether an output of the format may begin so."""
        return self._pattern.fullmatch(text, partial=True) is not None and self._say_it(text)

    def _say_it(self, text: str) -> bool:
        return all(self._holds.search(call) for call in self._calls.findall(text))
