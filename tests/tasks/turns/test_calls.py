"""Tool calls are read in every family's notation, and recorded results go to the calls they fit."""

import json
from typing import Any

import pytest

from tasks.turns.calls import Call, read_calls, splice_results
from tests.support.answers import FORMS

R1 = '<｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n```json\n{"x": 1}\n```<｜tool▁call▁end｜>'
QWEN35 = "<tool_call>\n<function=look>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>"
HEADER = '<|start|>assistant to=functions.look<|channel|>commentary json<|message|>{"x": 1}'
NOTATIONS = {
    **{name: form.call for name, form in FORMS.items() if name not in ("llama-3", "mistral", "gpt-oss")},
    "deepseek-r1": R1,
    "qwen3.5": QWEN35,
    "gpt-oss": FORMS["gpt-oss"].call.replace("{}", '{"x": 1}'),
    "gpt-oss-header": HEADER,
}


@pytest.mark.parametrize("family", NOTATIONS)
def test_the_first_call_is_read(family: str) -> None:
    """Name and arguments come out alike, whatever the notation."""
    call = read_calls(NOTATIONS[family])[0]
    assert call.name == "look"
    assert json.loads(call.arguments) == ({} if family == "minimax-m3" else {"x": 1})
    assert call.id == ("functions.look:0" if family == "kimi" else "call_0")


def test_several_calls_keep_their_order() -> None:
    """Kimi's ids are kept as they were written."""
    assert [(c.id, c.arguments) for c in read_calls(FORMS["kimi"].call)] == [
        ("functions.look:0", '{"x": 1}'),
        ("functions.look:1", "{}"),
    ]


@pytest.mark.parametrize("text", ["", "no call", "<tool_call>\nnot json\n</tool_call>"])
def test_what_is_no_call_gives_none(text: str) -> None:
    """Nothing is guessed."""
    assert read_calls(text) == []


def recorded(*calls: tuple[str, Any]) -> dict[str, Any]:
    """Return a recorded answer that makes these calls."""
    return {
        "role": "assistant",
        "tool_calls": [
            {"id": f"c{i}", "function": {"name": name, "arguments": arguments}}
            for i, (name, arguments) in enumerate(calls)
        ],
    }


RESULTS = [
    {"role": "tool", "tool_call_id": "c1", "content": "second"},
    {"role": "tool", "tool_call_id": "c0", "content": "first"},
]


@pytest.mark.parametrize(
    ("made", "match", "expected"),
    [
        pytest.param([("a", "{}"), ("b", "{}")], "position", ["second", "first"], id="position"),
        pytest.param([("x", "{}")], "position", None, id="position-count"),
        pytest.param([("b", "{}"), ("a", "{}")], "name", ["second", "first"], id="name"),
        pytest.param([("a", '{"other": 1}')], "name", ["first"], id="name-subset"),
        pytest.param([("c", "{}")], "name", None, id="name-unknown"),
        pytest.param([("a", "{}"), ("a", "{}")], "name", None, id="name-used-up"),
        pytest.param([("b", '{ "q" : [1] }')], "name_args", ["second"], id="args-equal"),
        pytest.param([("b", '{"q": [2]}')], "name_args", None, id="args-differ"),
    ],
)
def test_results_go_to_the_calls_they_fit(
    made: list[tuple[str, str]], match: str, expected: list[str] | None
) -> None:
    """A result answers a call only under the rule that the job names, and carries that call's id."""
    calls = [Call(f"new{i}", name, arguments) for i, (name, arguments) in enumerate(made)]
    spliced = splice_results(calls, recorded(("a", "{}"), ("b", {"q": [1]})), RESULTS, match)
    assert (spliced and [message["content"] for message in spliced]) == expected
    if spliced:
        assert [message["tool_call_id"] for message in spliced] == [call.id for call in calls]
