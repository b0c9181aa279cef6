"""Messages in every form people record them, rendered as each family's template wants them."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tasks.errors import RowError
from tasks.tokenizer.template import render, render_prompt
from tests.support.families import Load
from tests.support.model_folders import GENUINE

EVERY = ["stand-in", "kimi-tiny", pytest.param("kimi", marks=pytest.mark.shared), *GENUINE]
KEEPS_REASONING_IN_A_TOOL_LOOP = [
    name for name in GENUINE if name not in ("qwq", "deepseek-r1", "deepseek-v3.1")
]
DROPS_DEVELOPER = [
    "qwen3",
    "deepseek-r1",
    "deepseek-v3.1",
    "glm-4.5v",
    "glm-4.7-flash",
    "glm-5.1",
    "minimax-m2",
]
TOOLS = [{"type": "function", "function": {"name": "look", "description": "Look at x.", "parameters": {}}}]


def tool_loop(arguments: object, field: str = "reasoning_content") -> list[dict[str, object]]:
    """Return a conversation that ends on a tool's result."""
    call = {
        "id": "functions.look:0",
        "type": "function",
        "function": {"name": "look", "arguments": arguments},
    }
    return [
        {"role": "user", "content": "Look at seven."},
        {"role": "assistant", "content": "Looking.", field: "I must look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "functions.look:0", "name": "look", "content": "It is a prime."},
    ]


@pytest.mark.parametrize("family", EVERY)
def test_arguments_may_come_as_text_or_as_a_mapping(family: str, load: Load) -> None:
    """Tool arguments as JSON text and as an object give one and the same prompt on every family."""
    vocabulary, grammar = load(family, True)
    as_text = render(vocabulary, tool_loop('{"x": 7}'), TOOLS)
    as_mapping = render(vocabulary, tool_loop({"x": 7}), TOOLS)
    assert as_text.tolist() == as_mapping.tolist()
    text = vocabulary.decode(as_text.tolist())
    assert "It is a prime." in text
    assert '\\"x\\"' not in text
    assert grammar.tail_of(as_text) is not None


@pytest.mark.parametrize("family", KEEPS_REASONING_IN_A_TOOL_LOOP)
@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_reaches_the_template_under_any_name(family: str, field: str, load: Load) -> None:
    """Whatever the record calls it, reasoning is in the prompt where the family keeps it."""
    vocabulary, _ = load(family, True)
    text = render_prompt(vocabulary, tool_loop({"x": 7}, field), TOOLS).text
    assert "I must look." in text
    assert text == render_prompt(vocabulary, tool_loop({"x": 7}), TOOLS).text


@pytest.mark.parametrize("family", EVERY)
def test_inline_reasoning_moves_to_its_field(family: str, load: Load) -> None:
    """A kept answer with `<think>…</think>` in its text renders as one with a reasoning field."""
    vocabulary, _ = load(family, True)
    question, more = {"role": "user", "content": "A prime?"}, {"role": "user", "content": "Next?"}
    inline = {"role": "assistant", "content": "<think>\nSeven is one.\n</think>\n\n7"}
    field = {"role": "assistant", "content": "7", "reasoning_content": "Seven is one."}
    assert (
        render(vocabulary, [question, inline, more]).tolist()
        == render(vocabulary, [question, field, more]).tolist()
    )


@pytest.mark.parametrize("family", DROPS_DEVELOPER)
def test_a_role_that_the_template_drops_is_refused(family: str, load: Load) -> None:
    """A `developer` message that silently vanishes from the prompt rejects the row."""
    vocabulary, _ = load(family, True)
    messages = [{"role": "developer", "content": "Be brief and kind."}, {"role": "user", "content": "Go."}]
    with pytest.raises(RowError, match="message 0: the template drops or changes its text") as caught:
        render(vocabulary, messages)
    assert caught.value.code == "template_error"


@pytest.mark.parametrize("family", EVERY)
def test_content_parts_are_joined(family: str, load: Load) -> None:
    """A list of text parts is the text."""
    vocabulary, _ = load(family, True)
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "2+2?"}]
    assert (
        render(vocabulary, [{"role": "user", "content": parts}]).tolist()
        == render(vocabulary, [{"role": "user", "content": "What is 2+2?"}]).tolist()
    )


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        pytest.param({"content": "x"}, "expected a role", id="no-role"),
        pytest.param({"role": "user", "content": 7}, "expected text content, got 7", id="number"),
        pytest.param(
            {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "expected text", id="image"
        ),
    ],
)
def test_what_is_no_text_is_a_bad_record(message: dict[str, object], expected: str, load: Load) -> None:
    """Content that is not text is refused with what came."""
    vocabulary, _ = load("stand-in", True)
    with pytest.raises(RowError, match=expected) as caught:
        render(vocabulary, [message])
    assert caught.value.code == "bad_record"


@pytest.mark.parametrize("family", [name for name in GENUINE if name != "deepseek-v4"])
def test_render_equals_the_tokenizers_own_template_call(family: str, load: Load) -> None:
    """Our ids are those of `apply_chat_template(tokenize=True)` with a generation prompt."""
    vocabulary, _ = load(family, True)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Ünïcode 東京 हिन्दी 🙂 don't\n\n  x"},
    ]
    own = vocabulary.tokenizer.apply_chat_template(
        messages, tokenize=True, return_dict=False, add_generation_prompt=True, **vocabulary.template_args
    )
    assert render(vocabulary, messages).tolist() == list(own)


def test_json_stays_json(load: Load) -> None:
    """Arguments that are not JSON reject the row on a family that needs a mapping."""
    vocabulary, _ = load("qwen3.5", True)
    with pytest.raises(RowError, match="expected a JSON object") as caught:
        render(vocabulary, tool_loop("{x: 7"), TOOLS)
    assert caught.value.code == "bad_record"


def test_many_threads_render_as_one(load: Load) -> None:
    """Prompts are rendered on several threads at once, and come out as from one."""
    for family in ("qwen3", "kimi-tiny", "stand-in"):
        vocabulary, _ = load(family, True)
        asked = [[{"role": "user", "content": f"Question {i}: don't {'x ' * (i % 50)}?"}] for i in range(200)]
        alone = [render(vocabulary, messages).tolist() for messages in asked]
        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(lambda messages: render(vocabulary, messages).tolist(), asked))  # noqa: B023
        assert together == alone


@pytest.mark.parametrize("family", EVERY)
def test_results_with_quotes_and_line_breaks_are_no_loss(family: str, load: Load) -> None:
    """A tool result that the template prints as JSON is in the prompt all the same."""
    vocabulary, _ = load(family, True)
    messages = tool_loop({"x": 7})
    messages[2] = {**messages[2], "content": 'He said "no".\n\tThen\\so: {"a": [1, 2]}'}
    assert render(vocabulary, messages, TOOLS).size
