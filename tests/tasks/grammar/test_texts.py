"""What stands between control ids: headers and tags say what they must, and a call says something."""

from typing import Any

import pytest

from tasks.grammar.check import check_rows
from tasks.grammar.grammar import Grammar
from tasks.rows.records import Completion, Ragged, as_ids
from tasks.tokenizer.template import render
from tasks.tokenizer.vocabulary import Vocabulary
from tasks.turns.replies import answer_calls
from tests.support.byte_families import byte_family

THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>So.<|return|>"
TOLD = THOUGHT + "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
IN_CHANNEL = "<|channel|>commentary to=functions.look"
IN_ROLE = " to=functions.look<|channel|>commentary"
ARGUMENTS = '<|message|>{"x": 1}<|call|>'
DSML = "｜DSML｜"
SECTION = f'<{DSML}tool_calls>\n<{DSML}invoke name="look">\n</{DSML}invoke>\n</{DSML}tool_calls>'
ENDED = "<｜end▁of▁sentence｜>"

ACCEPTED = {
    "final at once": ("gpt-oss header", FINAL),
    "thought, then final": ("gpt-oss header", THOUGHT + FINAL),
    "two thoughts": ("gpt-oss header", THOUGHT + THOUGHT + FINAL),
    "final in a format": (
        "gpt-oss header",
        THOUGHT + "<|channel|>final <|constrain|>json<|message|>{}<|return|>",
    ),
    "channel names the tool": ("gpt-oss header", THOUGHT + IN_CHANNEL + ARGUMENTS),
    "channel, constrained": ("gpt-oss header", f"{THOUGHT}{IN_CHANNEL} <|constrain|>json{ARGUMENTS}"),
    "channel, constrained, no space": (
        "gpt-oss header",
        f"{THOUGHT}{IN_CHANNEL}<|constrain|>json{ARGUMENTS}",
    ),
    "channel, format as a word": ("gpt-oss header", f"{THOUGHT}{IN_CHANNEL} json{ARGUMENTS}"),
    "channel, at once": ("gpt-oss header", IN_CHANNEL + ARGUMENTS),
    "role names the tool": ("gpt-oss header", f"{THOUGHT}{IN_ROLE}{ARGUMENTS}"),
    "role, format as a word": (
        "gpt-oss header",
        f"{THOUGHT}{IN_ROLE} json{ARGUMENTS}",
    ),
    "role, constrained": (
        "gpt-oss header",
        f"{THOUGHT}{IN_ROLE} <|constrain|>json{ARGUMENTS}",
    ),
    "role, at once": ("gpt-oss header", f"{IN_ROLE} json{ARGUMENTS}"),
    "told first": ("gpt-oss header", f"{TOLD}{IN_CHANNEL} <|constrain|>json{ARGUMENTS}"),
    "told first, role": ("gpt-oss header", f"{TOLD}{IN_ROLE}{ARGUMENTS}"),
    "built-in tool": ("gpt-oss header", THOUGHT + "<|channel|>analysis to=python code<|message|>1<|call|>"),
    "built-in tool, role": (
        "gpt-oss header",
        THOUGHT + " to=python<|channel|>analysis code<|message|>1<|call|>",
    ),
    "llama call": ("llama-3 never", "<|python_tag|>look(x=1)<|eom_id|>"),
    "named call": ("mistral may", '[TOOL_CALLS]look[ARGS]{"x": 1}</s>'),
    "two named calls": ("mistral may", "[TOOL_CALLS]look[ARGS]{}[TOOL_CALLS]see[ARGS]{}</s>"),
    "list of calls": ("mistral may", '[TOOL_CALLS] [{"name": "look", "arguments": {}}]</s>'),
    "no parameters": ("dsml open", f"a</think>{SECTION}{ENDED}"),
}
REFUSED = {
    "user's final": ("gpt-oss header", THOUGHT[:-9] + "user" + FINAL, "turn_start_inside"),
    "nobody's final": ("gpt-oss header", THOUGHT[:-9] + FINAL, "turn_start_inside"),
    "tool's answer": (
        "gpt-oss header",
        THOUGHT[:-9]
        + "functions.look to=assistant<|channel|>commentary<|message|>4<|end|><|start|>assistant"
        + FINAL,
        "turn_start_inside",
    ),
    "text behind the role": ("gpt-oss header", THOUGHT + " says" + FINAL, "turn_start_inside"),
    "text in the first header": ("gpt-oss header", "So" + FINAL, "opener_missing"),
    "text behind final": (
        "gpt-oss header",
        "<|channel|>final answer<|message|>So.<|return|>",
        "control_unexpected",
    ),
    "text behind analysis": (
        "gpt-oss header",
        "<|channel|>analysis of it<|message|>Hm.<|end|><|start|>assistant" + FINAL,
        "control_unexpected",
    ),
    "text behind commentary": (
        "gpt-oss header",
        THOUGHT + "<|channel|>commentary of it<|message|>Hm.<|end|><|start|>assistant" + FINAL,
        "control_unexpected",
    ),
    "format of many words": (
        "gpt-oss header",
        "<|channel|>final <|constrain|>json and more<|message|>So.<|return|>",
        "control_unexpected",
    ),
    "two formats": (
        "gpt-oss header",
        "<|channel|>final <|constrain|>json<|constrain|>json<|message|>So.<|return|>",
        "control_unexpected",
    ),
    "final for a tool": ("gpt-oss header", " to=functions.look" + FINAL, "control_unexpected"),
    "call of no tool": ("gpt-oss header", f"<|channel|>commentary json{ARGUMENTS}", "tools_unbalanced"),
    "constrained call of no tool": (
        "gpt-oss header",
        f"<|channel|>commentary <|constrain|>json{ARGUMENTS}",
        "tools_unbalanced",
    ),
    "call of two tools": ("gpt-oss header", f" to=functions.look{IN_CHANNEL}{ARGUMENTS}", "tools_unbalanced"),
    "text in a call's header": ("gpt-oss header", f"{IN_CHANNEL} and so on{ARGUMENTS}", "tools_unbalanced"),
    "call without arguments": ("gpt-oss header", IN_CHANNEL + "<|message|><|call|>", "tools_unbalanced"),
    "blank arguments": (
        "gpt-oss header",
        IN_CHANNEL + "<|constrain|>json<|message|> \n<|call|>",
        "tools_unbalanced",
    ),
    "telling nothing": ("gpt-oss header", TOLD.replace("I look.", "") + FINAL, "content_empty"),
    "llama: empty": ("llama-3 never", "<|python_tag|><|eot_id|>", "tools_unbalanced"),
    "llama: blank": ("llama-3 never", "<|python_tag|> \n<|eom_id|>", "tools_unbalanced"),
    "llama: second is empty": (
        "llama-3 never",
        "<|python_tag|>f()<|python_tag|><|eom_id|>",
        "tools_unbalanced",
    ),
    "mistral: empty": ("mistral may", "[TOOL_CALLS]</s>", "tools_unbalanced"),
    "mistral: no name": ("mistral may", "[TOOL_CALLS][ARGS]{}</s>", "tools_unbalanced"),
    "mistral: no arguments": ("mistral may", "[TOOL_CALLS]look[ARGS]</s>", "tools_unbalanced"),
    "mistral: name alone": ("mistral may", "[TOOL_CALLS]look</s>", "tools_unbalanced"),
    "mistral: arguments twice": ("mistral may", "[TOOL_CALLS]look[ARGS]{}[ARGS]{}</s>", "tools_unbalanced"),
    "dsml: no call": (
        "dsml open",
        f"a</think><{DSML}tool_calls>\n</{DSML}tool_calls>{ENDED}",
        "tools_unbalanced",
    ),
    "dsml: closes first": (
        "dsml open",
        f"a</think>{SECTION.replace('<', '</', 1)}{ENDED}",
        "tools_unbalanced",
    ),
    "dsml: opens last": (
        "dsml open",
        f"a</think>{SECTION[:-14].removesuffix('</' + DSML)}<{DSML}tool_calls>{ENDED}",
        "tools_unbalanced",
    ),
    "dsml: no name": (
        "dsml open",
        f"a</think>{SECTION.replace(' name=', '')}{ENDED}",
        "tools_unbalanced",
    ),
    "dsml: text behind": ("dsml open", f"a</think>{SECTION}So.{ENDED}", "tools_unbalanced"),
    "minimax-m3: marks only": (
        "minimax-m3 may",
        "<mm:think>a</mm:think>]<]minimax[>[<tool_call>]<]minimax[>[</tool_call>[e~[",
        "tools_unbalanced",
    ),
    "minimax-m2: no call": (
        "minimax-m2 open",
        "a</think><minimax:tool_call>hm</minimax:tool_call>[e~[",
        "tools_unbalanced",
    ),
    "kimi: no arguments": (
        "kimi never",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>"
        "<|tool_call_end|><|tool_calls_section_end|><|im_end|>",
        "tools_unbalanced",
    ),
    "kimi: no call": (
        "kimi never",
        "<|tool_calls_section_begin|><|tool_calls_section_end|><|im_end|>",
        "tools_unbalanced",
    ),
    "qwen: empty": ("chatml must", "<think>a</think><tool_call>\n</tool_call><|im_end|>", "tools_unbalanced"),
    "deepseek: empty": (
        "deepseek must",
        "<think>a</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>"
        f"<｜tool▁call▁end｜><｜tool▁calls▁end｜>{ENDED}",
        "tools_unbalanced",
    ),
    "glm: no name": (
        "glm must",
        "<think>a</think><tool_call><arg_key>x</arg_key><arg_value>1</arg_value></tool_call><|observation|>",
        "tools_unbalanced",
    ),
    "glm: key without a name": (
        "glm must",
        "<think>a</think><tool_call>f<arg_key></arg_key><arg_value>1</arg_value></tool_call><|observation|>",
        "tools_unbalanced",
    ),
}


def judged(family: str, text: str, finish: str = "stop") -> tuple[Vocabulary, Completion, Any]:
    """Return the vocabulary, the row and its verdict."""
    vocabulary, grammar = byte_family(family)
    return vocabulary, *verdict_of(vocabulary, grammar, text, finish)


def verdict_of(vocabulary: Vocabulary, grammar: Grammar, text: str, finish: str) -> tuple[Completion, Any]:
    """Return an output of this text as a row, and its verdict."""
    prompt = render(vocabulary, [{"role": "user", "content": "Well?"}])
    row = Completion("r", prompt, as_ids(vocabulary.dialect.encode(text)), finish)
    columns = Ragged.from_rows([prompt]), Ragged.from_rows([row.output_ids])
    return row, check_rows(grammar, *columns, [row])[0]


def by_family(cases: dict[str, Any]) -> list[Any]:
    """Return the cases as parameters, those of one family together: it is loaded once."""
    return [
        pytest.param(*case, id=name.replace(" ", "-"))
        for name, case in sorted(cases.items(), key=lambda c: c[1][0])
    ]


@pytest.mark.parametrize(("family", "text"), by_family(ACCEPTED))
def test_every_documented_form_is_accepted(family: str, text: str) -> None:
    """A form of the format is canonical, its call can be read, and no cut of it is a fault."""
    vocabulary, row, verdict = judged(family, text)
    calls = not text.endswith("<|return|>")
    assert (verdict.code, verdict.detail) == ("complete_tools" if calls else "complete", "")
    assert [segment.kind for segment in verdict.segments][-2:] == [
        "tool_calls" if calls else "content",
        "end",
    ]
    if "functions." in text:
        assert [(call.name, call.arguments) for call in answer_calls(vocabulary, row, verdict)] == [
            ("look", '{"x": 1}')
        ]
    _, grammar = byte_family(family)
    whole = row.output_ids
    cuts = [Completion("r", row.input_ids, whole[:stop], "length") for stop in range(1, whole.size)]
    columns = (
        Ragged.from_rows([row.input_ids] * len(cuts)),
        Ragged.from_rows([cut.output_ids for cut in cuts]),
    )
    verdicts = check_rows(grammar, *columns, cuts)
    assert {str(verdict.code)[:4] for verdict in verdicts} == {"cut_"}, verdicts


@pytest.mark.parametrize(("family", "text", "code"), by_family(REFUSED))
def test_what_only_looks_like_it_is_refused(family: str, text: str, code: str) -> None:
    """Every other text between the same control ids has a code, which is today's alone."""
    assert judged(family, text)[2].code == code


@pytest.mark.parametrize(
    ("family", "text", "before", "now"),
    [
        pytest.param(
            "gpt-oss header", REFUSED["user's final"][1], "complete", "turn_start_inside", id="role"
        ),
        pytest.param(
            "gpt-oss header",
            ACCEPTED["role names the tool"][1],
            "tools_unbalanced",
            "complete_tools",
            id="to",
        ),
        pytest.param(
            "gpt-oss header", REFUSED["two formats"][1], "complete", "control_unexpected", id="formats"
        ),
        pytest.param(
            "llama-3 never", REFUSED["llama: empty"][1], "complete_tools", "tools_unbalanced", id="llama"
        ),
        pytest.param(
            "mistral may",
            REFUSED["mistral: arguments twice"][1],
            "complete_tools",
            "tools_unbalanced",
            id="mistral",
        ),
    ],
)
def test_what_earlier_versions_stored_stays_good(family: str, text: str, before: str, now: str) -> None:
    """The audit asks the earlier grammar of a stored row whose verdict is not today's."""
    vocabulary, grammar = byte_family(family)
    codes = [verdict_of(vocabulary, each, text, "stop")[1].code for each in (grammar.earlier, grammar)]
    assert codes == [before, now]
