"""Correct answers of every family, as text with control tokens: what a well-behaved model emits."""

import attrs

from tasks.grammar.grammar import Grammar

REASONING = "Let me see: 2 + 2, that is two and two."
CONTENT = "It is 4, of course."


@attrs.frozen
class Form:
    """How a family writes a turn.

    Args:
        opener: what opens reasoning when the model does it.
        closer: what closes it, with the white space that the family puts there.
        call: a tool call.
        end: end of an answer.
        call_end: end of a turn that calls tools.
    """

    opener: str
    closer: str
    call: str
    end: str
    call_end: str = ""


FORMS = {
    "kimi": Form(
        "<think>",
        "</think>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>"
        '{"x": 1}<|tool_call_end|><|tool_call_begin|>functions.look:1<|tool_call_argument_begin|>{}'
        "<|tool_call_end|><|tool_calls_section_end|>",
        "<|im_end|>",
    ),
    "deepseek": Form(
        "<think>",
        "</think>",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>{"x": 1}'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<｜end▁of▁sentence｜>",
    ),
    "deepseek-dsml": Form(
        "<think>",
        "</think>",
        '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="look">\n<｜DSML｜parameter name="x" string="false">1'
        "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        "<｜end▁of▁sentence｜>",
    ),
    "chatml": Form(
        "<think>\n",
        "\n</think>\n\n",
        '<tool_call>\n{"name": "look", "arguments": {"x": 1}}\n</tool_call>\n<tool_call>\n{}\n</tool_call>',
        "<|im_end|>",
    ),
    "glm": Form(
        "\n<think>",
        "</think>\n",
        "<tool_call>look\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
        "<|user|>",
        "<|observation|>",
    ),
    "minimax-m2": Form(
        "<think>\n",
        "\n</think>\n\n",
        '<minimax:tool_call>\n<invoke name="look">\n<parameter name="x">1</parameter>\n</invoke>\n'
        "</minimax:tool_call>",
        "[e~[",
    ),
    "minimax-m3": Form(
        "<mm:think>",
        "</mm:think>",
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="look">]<]minimax[>[</invoke>\n'
        "]<]minimax[>[</tool_call>",
        "[e~[",
    ),
    "gpt-oss": Form(
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
        "<|channel|>commentary to=functions.look <|constrain|>json<|message|>{}",
        "<|return|>",
        "<|call|>",
    ),
    "llama-3": Form("", "", "<|python_tag|>look(x=1)", "<|eot_id|>", "<|eom_id|>"),
    "mistral": Form("[THINK]", "[/THINK]", '[TOOL_CALLS]look[ARGS]{"x": 1}', "</s>"),
}


def answer(grammar: Grammar, tools: bool = False, content: str = CONTENT, reasoning: str = REASONING) -> str:
    """Return a correct turn under `grammar`'s default tail."""
    form, mode = FORMS[grammar.family], grammar.default.mode
    end = (form.call_end or form.end) if tools else form.end
    if mode == "header":
        head = form.opener + reasoning
        call = f"<|end|><|start|>assistant{form.call}"
        return head + (call if tools else form.closer + content) + end
    opener = form.opener if mode in ("must", "may") else ""
    head = "" if mode in ("closed", "never") else opener + reasoning + form.closer
    return head + (form.call if tools else content) + end
