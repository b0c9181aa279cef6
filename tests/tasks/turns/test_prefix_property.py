"""Where a turn's prompt extends the turn before, id for id: an exporter may merge such rows, no others."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.grammar.grammar import discover_grammar
from tasks.job.spec import ModelSpec
from tasks.rows.records import Ragged
from tasks.tokenizer.vocabulary import load_vocabulary
from tasks.turns.conversations import extends_previous
from tests.support.answers import answer
from tests.support.families import Load
from tests.tasks.turns.test_turns import ONE_CALL, TOOL_LOOP, Record, batch, reply, user

NEXT_QUESTION = {
    ("kimi-tiny", True): False,
    ("kimi-tiny", False): True,
    ("qwen3", True): False,
    ("qwen3", False): False,
    ("qwen3.5", True): False,
    ("glm-4.7-flash", True): False,
    ("glm-4.7-flash", False): True,
    ("deepseek-v3.1", True): False,
    ("deepseek-v3.1", False): True,
    ("minimax-m2", True): False,
    ("kimi-k2-instruct", True): True,
    ("qwen3-instruct-2507", True): True,
    ("llama-3.1", True): True,
}
"""Family and reasoning to whether a second question's prompt extends the first turn: see the templates."""

TOOL_CALLS = {
    "kimi-tiny": f"I look.</think>{ONE_CALL}<|im_end|>",
    "qwen3": (
        "<think>\nI look.\n</think>\n\n<tool_call>\n"
        '{"name": "look", "arguments": {"x": 1}}\n</tool_call><|im_end|>'
    ),
    "glm-4.7-flash": (
        "I look.</think><tool_call>look<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>"
        "<|observation|>"
    ),
    "minimax-m2": (
        'I look.\n</think>\n\n\n<minimax:tool_call>\n<invoke name="look">\n'
        '<parameter name="x">1</parameter>\n</invoke>\n</minimax:tool_call>[e~['
    ),
}


@pytest.mark.parametrize(("family", "thinking"), NEXT_QUESTION, ids=str)
def test_a_second_question(family: str, thinking: bool, load: Load) -> None:
    """Most templates drop earlier reasoning, and then the second prompt is another sequence."""
    vocabulary, grammar = load(family, thinking)
    made = batch(vocabulary, grammar, Record((user("First?"), user("Second?"))))
    first = reply(vocabulary, made.open({})[0][0], answer(grammar, content="Yes."))
    second, _ = made.follow(first)
    assert second is not None
    inputs = Ragged.from_rows([first.input_ids, second.input_ids])
    outputs = Ragged.from_rows([first.output_ids, first.output_ids])
    assert extends_previous(made.row_ids, inputs, outputs).tolist() == [
        False,
        NEXT_QUESTION[family, thinking],
    ]


@pytest.mark.parametrize("cleared", [False, True], ids=["glm-5-kept", "glm-5-cleared"])
def test_an_argument_keeps_earlier_reasoning(cleared: bool, model_folder: Callable[[str], Path]) -> None:
    """GLM-5's `clear_thinking: false`: the second prompt extends the first turn with its reasoning."""
    arguments = {"enable_thinking": True, "clear_thinking": cleared}
    vocabulary = load_vocabulary(ModelSpec(tokenizer=str(model_folder("glm-5")), template_args=arguments))
    made = batch(vocabulary, discover_grammar(vocabulary), Record((user("First?"), user("Second?"))))
    first = reply(vocabulary, made.open({})[0][0], "I look.</think>Yes.<|user|>")
    second, _ = made.follow(first)
    assert second is not None
    inputs = Ragged.from_rows([first.input_ids, second.input_ids])
    outputs = Ragged.from_rows([first.output_ids, first.output_ids])
    assert extends_previous(made.row_ids, inputs, outputs).tolist() == [False, not cleared]


@pytest.mark.parametrize("family", TOOL_CALLS)
def test_a_tool_loop(family: str, load: Load) -> None:
    """Inside a tool loop reasoning is kept, and our re-rendered history is the model's own ids again."""
    vocabulary, grammar = load(family, True)
    made = batch(vocabulary, grammar, Record(TOOL_LOOP))
    first = reply(vocabulary, made.open({})[0][0], TOOL_CALLS[family])
    second, unsent = made.follow(first)
    assert unsent == []
    assert second is not None
    inputs = Ragged.from_rows([first.input_ids, second.input_ids])
    outputs = Ragged.from_rows([first.output_ids, first.output_ids])
    assert extends_previous(made.row_ids[:2], inputs, outputs).tolist() == [False, True]
