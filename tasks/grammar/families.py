"""The families of chat formats as data: which control token means what, and what may follow what.

Nothing here is keyed on a model's name: a family applies when its control tokens are in the vocabulary and
one of its headers is in the tail of a rendered prompt; the first match wins. Adding a family means adding an
entry; the checker has no branch per family.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

import attrs

from tasks.grammar.rules import (
    BARE_TOOLS,
    CHANNELS,
    CHANNELS_BEFORE,
    FROM_REASONING,
    KEYED_TOOLS,
    MARKED_TOOLS,
    NAMED_TOOLS,
    OPEN_TOOLS,
    OPEN_TOOLS_BEFORE,
    SECTION_TOOLS,
    THINKING,
    Transitions,
)
from tasks.grammar.states import Symbol
from tasks.grammar.texts import HEADERS, INVOKED, KEYED, MARKS, NAMED, SPOKEN, Texts

Opens = Literal["template", "open", "closed", "must", "may", "never", "header"]


@attrs.frozen(slots=True, eq=False)
class Family:
    """One chat format.

    Args:
        name: for people.
        headers: control texts of which one stands in the tail of every rendered prompt.
        requires: control texts that the vocabulary must have.
        opener: text that opens reasoning, "" for none; a control token, or (in vocabularies without it, when
            the chat template writes it) ordinary ids that spell it.
        closer: text that closes it, of the same kind.
        symbols: what the family's other control texts mean; any not named is CONTROL.
        rules: what may follow what.
        texts: what must stand between.
        before: the rules of earlier versions, where they were others.
        ends: end-of-turn texts, used only when the model brings no generation_config.json.
        plain: control texts that a model may write like any word.
        qualified: control texts whose meaning depends on the text that follows, longest first.
        opens: who opens reasoning when the tail does not tell: `must` and `may` (the model), `never`,
            `template` (the model must if the chat template mentions the closer, else never),
            `header` (channels), `open` and `closed` (a job's own word, whatever the tail).
        trim: whether the template itself writes the line breaks around reasoning, so that history is
            handed to it without them.
    """

    name: str
    headers: tuple[str, ...]
    opener: str = ""
    closer: str = ""
    requires: tuple[str, ...] = ()
    symbols: Mapping[str, Symbol] = attrs.field(factory=dict)
    rules: Transitions = THINKING
    texts: Texts = attrs.field(factory=dict)
    before: Transitions | None = None
    ends: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()
    qualified: Mapping[str, Mapping[str, Symbol]] = attrs.field(factory=dict)
    opens: Opens = "template"
    trim: bool = True


def _symbols(**groups: Any) -> dict[str, Symbol]:
    return {
        text: Symbol[name.upper()]
        for name, texts in groups.items()
        for text in ((texts,) if isinstance(texts, str) else texts)
    }


def _rules(*parts: Transitions) -> Transitions:
    return MappingProxyType({key: state for part in parts for key, state in part.items()})


KIMI: Final = Family(
    name="kimi",
    headers=("<|im_assistant|>",),
    requires=("<|im_middle|>",),
    opener="<think>",
    closer="</think>",
    symbols=_symbols(
        turn=("<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>"),
        section_begin="<|tool_calls_section_begin|>",
        section_end="<|tool_calls_section_end|>",
        call_begin="<|tool_call_begin|>",
        call_argument="<|tool_call_argument_begin|>",
        call_end="<|tool_call_end|>",
    ),
    rules=_rules(THINKING, SECTION_TOOLS, FROM_REASONING),
    ends=("<|im_end|>",),
    trim=False,
)
_DEEPSEEK_TURNS: Final = (
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜begin▁of▁sentence｜>",
    "<｜tool▁outputs▁begin｜>",
    "<｜tool▁outputs▁end｜>",
    "<｜tool▁output▁begin｜>",
    "<｜tool▁output▁end｜>",
)
DEEPSEEK_DSML: Final = Family(
    name="deepseek-dsml",
    headers=("<｜Assistant｜>",),
    requires=("｜DSML｜", "<think>"),
    opener="<think>",
    closer="</think>",
    symbols=_symbols(turn=(*_DEEPSEEK_TURNS, "<｜latest_reminder｜>")),
    qualified={
        "｜DSML｜": {
            "function_calls": Symbol.SECTION_BEGIN,  # V3.2
            "tool_calls": Symbol.SECTION_BEGIN,  # V4
            "invoke": Symbol.CALL_BEGIN,
            "parameter": Symbol.KEY,
        }
    },
    rules=_rules(THINKING, MARKED_TOOLS),
    texts=MARKS,
    ends=("<｜end▁of▁sentence｜>",),
    trim=False,
)
DEEPSEEK: Final = Family(
    name="deepseek",
    headers=("<｜Assistant｜>", "<｜tool▁output▁end｜>", "<｜tool▁outputs▁end｜>"),
    opener="<think>",
    closer="</think>",
    symbols=_symbols(
        turn=_DEEPSEEK_TURNS,
        section_begin="<｜tool▁calls▁begin｜>",
        section_end="<｜tool▁calls▁end｜>",
        call_begin="<｜tool▁call▁begin｜>",
        call_argument="<｜tool▁sep｜>",
        call_end="<｜tool▁call▁end｜>",
    ),
    rules=_rules(THINKING, SECTION_TOOLS),
    ends=("<｜end▁of▁sentence｜>",),
    trim=False,
)
GLM: Final = Family(
    name="glm",
    headers=("<|assistant|>",),
    requires=("[gMASK]", "<|observation|>"),
    opener="<think>",
    closer="</think>",
    symbols=_symbols(
        turn=("<|system|>", "<|user|>", "<|assistant|>", "[gMASK]", "<sop>"),
        call_begin="<tool_call>",
        call_end="</tool_call>",
        key="<arg_key>",
        key_end="</arg_key>",
        value="<arg_value>",
        value_end="</arg_value>",
        tool_end="<|observation|>",
    ),
    rules=_rules(THINKING, BARE_TOOLS, KEYED_TOOLS),
    texts=KEYED,
    ends=("<|endoftext|>", "<|user|>", "<|observation|>"),
    plain=("/nothink", "<|begin_of_box|>", "<|end_of_box|>"),
)
MINIMAX_M3: Final = Family(
    name="minimax-m3",
    headers=("]~b]",),
    requires=("<mm:think>", "]<]minimax[>["),
    opener="<mm:think>",
    closer="</mm:think>",
    symbols=_symbols(turn=("]~b]", "]~!b["), call_begin="<tool_call>", call_end="</tool_call>"),
    rules=_rules(THINKING, BARE_TOOLS),
    texts=INVOKED,
    ends=("[e~[",),
    plain=("]<]minimax[>[",),
    opens="may",
    trim=False,
)
MINIMAX_M2: Final = Family(
    name="minimax-m2",
    headers=("]~b]",),
    opener="<think>",
    closer="</think>",
    symbols=_symbols(
        turn=("]~b]", "]~!b["), call_begin="<minimax:tool_call>", call_end="</minimax:tool_call>"
    ),
    rules=_rules(THINKING, BARE_TOOLS),
    texts=INVOKED,
    ends=("[e~[",),
)
GPT_OSS: Final = Family(
    name="gpt-oss",
    headers=("<|start|>",),
    requires=("<|channel|>", "<|message|>", "<|end|>"),
    opener="<|channel|>analysis<|message|>",
    closer="<|end|>",
    symbols=_symbols(
        start="<|start|>",
        message="<|message|>",
        block_end="<|end|>",
        constrain="<|constrain|>",
        tool_end="<|call|>",
    ),
    qualified={
        "<|channel|>": {
            "commentary to": Symbol.CALLING,
            "commentary json": Symbol.CALLING,
            "analysis to": Symbol.CALLING,
            "commentary": Symbol.COMMENTARY,
            "analysis": Symbol.ANALYSIS,
            "final": Symbol.FINAL,
        }
    },
    rules=CHANNELS,
    texts=HEADERS,
    before=CHANNELS_BEFORE,
    ends=("<|return|>", "<|call|>"),
    opens="header",
)
LLAMA: Final = Family(
    name="llama-3",
    headers=("<|start_header_id|>",),
    requires=("<|eot_id|>",),
    symbols=_symbols(
        turn=("<|start_header_id|>", "<|end_header_id|>", "<|begin_of_text|>"),
        section_begin="<|python_tag|>",
    ),
    rules=_rules(THINKING, OPEN_TOOLS),
    texts=SPOKEN,
    before=_rules(THINKING, OPEN_TOOLS_BEFORE),
    ends=("<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"),
    opens="never",
)
MISTRAL: Final = Family(
    name="mistral",
    headers=("[/INST]",),
    opener="[THINK]",
    closer="[/THINK]",
    symbols=_symbols(
        turn=("[INST]", "[/INST]", "<s>", "[SYSTEM_PROMPT]"),
        section_begin="[TOOL_CALLS]",
        inside="[CALL_ID]",
        call_argument="[ARGS]",
    ),
    rules=_rules(THINKING, NAMED_TOOLS),
    texts=NAMED,
    before=_rules(THINKING, OPEN_TOOLS_BEFORE),
    ends=("</s>",),
    opens="may",
)
CHATML: Final = Family(
    name="chatml",
    headers=("<|im_start|>",),
    opener="<think>",
    closer="</think>",
    symbols=_symbols(turn="<|im_start|>", call_begin="<tool_call>", call_end="</tool_call>"),
    rules=_rules(THINKING, BARE_TOOLS),
    ends=("<|im_end|>", "<|endoftext|>"),
)
FAMILIES: Final = (
    KIMI,
    DEEPSEEK_DSML,
    DEEPSEEK,
    GLM,
    MINIMAX_M3,
    MINIMAX_M2,
    GPT_OSS,
    LLAMA,
    MISTRAL,
    CHATML,
)
