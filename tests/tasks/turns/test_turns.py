"""Conversations in token space: which rows a record gives, and what follows what."""

import json
from typing import Any

import attrs
import numpy as np
import pytest

from tasks.grammar.check import check_row
from tasks.grammar.grammar import Grammar
from tasks.job.spec import SamplingSpec
from tasks.rows.lengths import LengthLimits
from tasks.rows.records import Completion, Ragged, Request, as_ids
from tasks.rows.row_id import row_id, split_row_id
from tasks.rows.verdicts import Code
from tasks.tokenizer.vocabulary import Vocabulary
from tasks.turns.conversations import answer_points, extends_previous, plan_conversations
from tasks.turns.replies import answer_calls, answer_message
from tasks.turns.sampling import resolve_sampling, row_seed
from tests.support.answers import FORMS, answer
from tests.support.families import Load
from tests.support.model_folders import SHARED
from tests.support.talk import Talk


@attrs.frozen
class Record:
    """A source record."""

    messages: tuple[dict[str, Any], ...]
    record_id: str = "1"
    source: str = "test"
    tools: tuple[dict[str, Any], ...] = ()
    metadata: str = "{}"
    error: str = ""
    code: Code = Code.BAD_RECORD


def user(text: str) -> dict[str, Any]:
    """Return a question."""
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    """Return a recorded answer."""
    return {"role": "assistant", "content": text}


def batch(
    vocabulary: Vocabulary,
    grammar: Grammar,
    *records: Record,
    turns: str = "each",
    samples: int = 1,
    **options: Any,
) -> Talk:
    """Return the conversations of records under the tests' sampling and limits."""
    resolved = resolve_sampling(SamplingSpec(max_new_tokens=100), vocabulary, grammar)
    limits = options.pop("limits", LengthLimits(4096, 4090, 100_000))
    return Talk(plan_conversations(records, turns, samples), vocabulary, grammar, resolved, limits, **options)


def reply(vocabulary: Vocabulary, request: Request, text: str, finish: str = "stop") -> Completion:
    """Return what a model that says `text` answers."""
    return Completion(request.row_id, request.input_ids, as_ids(vocabulary.dialect.encode(text)), finish)


def text_of(vocabulary: Vocabulary, request: Request | None) -> str:
    """Return a prompt as text."""
    assert request is not None
    return vocabulary.decode(request.input_ids.tolist())


@pytest.mark.parametrize(
    ("roles", "points"),
    [
        pytest.param("u", [1], id="one-question"),
        pytest.param("uu", [1, 2], id="mt-bench"),
        pytest.param("uaua", [1, 3], id="recorded"),
        pytest.param("suau", [2, 4], id="system-and-open-end"),
        pytest.param("uatau", [1, 3, 5], id="tool-loop"),
        pytest.param("uat", [1, 3], id="ends-on-tool"),
        pytest.param("s", [], id="nothing-asked"),
    ],
)
def test_answer_points(roles: str, points: list[int]) -> None:
    """An answer goes before every recorded one, and behind every question that has none."""
    names = {"u": "user", "a": "assistant", "s": "system", "t": "tool"}
    assert answer_points([{"role": names[role]} for role in roles]) == points


def test_row_ids_name_source_record_turn_and_sample() -> None:
    """All parts are always there, and what separates them is escaped."""
    name = row_id("a:b", "50%#1~x", 2, 3)
    assert name == "a%3Ab:50%25%231%7Ex#t2~s3"
    assert split_row_id(name) == ("a:b", "50%#1~x", 2, 3)


@pytest.mark.parametrize(
    ("turns", "rows"),
    [
        pytest.param("each", ["#t0~s0", "#t1~s0", "#t0~s1", "#t1~s1"], id="each"),
        pytest.param("each_recorded", ["#t0~s0", "#t1~s0", "#t0~s1", "#t1~s1"], id="each_recorded"),
        pytest.param("last", ["#t1~s0", "#t1~s1"], id="last"),
        pytest.param("first", ["#t0~s0", "#t0~s1"], id="first"),
    ],
)
def test_rows_of_a_record(turns: str, rows: list[str], load: Load) -> None:
    """Rows are record by sample by turn, in that order."""
    vocabulary, grammar = load("stand-in", True)
    made = batch(vocabulary, grammar, Record((user("a"), said("b"), user("c"))), turns=turns, samples=2)
    assert made.row_ids == tuple(f"test:1{row}" for row in rows)
    assert made.turn_numbers.tolist() == [int(row[2]) for row in rows]
    assert made.sample_numbers.tolist() == [int(row[-1]) for row in rows]


@pytest.mark.parametrize(
    "family", ["stand-in", "kimi-tiny", "qwen3", "glm-4.7-flash", "deepseek-v3.1", "gpt-oss"]
)
def test_the_next_turn_stands_on_what_the_model_said(family: str, load: Load) -> None:
    """The recorded answer is gone, the model's own is in its place, reasoning where the family leaves it."""
    vocabulary, grammar = load(family, True)
    made = batch(vocabulary, grammar, Record((user("First?"), said("RECORDED"), user("Second?"))))
    requests, unsent = made.open({})
    assert (len(requests), unsent) == (1, [])
    following, unsent = made.follow(reply(vocabulary, requests[0], answer(grammar, content="My own words.")))
    text = text_of(vocabulary, following)
    assert unsent == []
    assert "My own words." in text
    assert "RECORDED" not in text
    assert text.index("First?") < text.index("My own words.") < text.index("Second?")
    assert grammar.tail_of(following.input_ids) is grammar.default  # type: ignore[union-attr]


def test_each_recorded_turns_wait_for_none(load: Load) -> None:
    """Every turn is asked at once, on the history as it was recorded."""
    vocabulary, grammar = load("stand-in", True)
    made = batch(vocabulary, grammar, Record((user("a"), said("RECORDED"), user("c"))), turns="each_recorded")
    requests, _ = made.open({})
    assert [request.row_id for request in requests] == ["test:1#t0~s0", "test:1#t1~s0"]
    assert "RECORDED" in text_of(vocabulary, requests[1])
    assert made.follow(reply(vocabulary, requests[0], answer(grammar))) == (None, [])


@pytest.mark.parametrize(
    ("text", "finish", "code"),
    [
        pytest.param("a</think>b", "length", "cut_in_content", id="cut"),
        pytest.param("a<|im_end|>", "stop", "closer_missing", id="behaviour"),
        pytest.param("a</think>b", "stop", "end_missing", id="integrity"),
    ],
)
def test_a_fault_ends_the_conversation(text: str, finish: str, code: str, load: Load) -> None:
    """Behind a cut or faulty turn every later turn is unreached, and says which row was at fault."""
    vocabulary, grammar = load("stand-in", True)
    made = batch(vocabulary, grammar, Record((user("a"), user("b"), user("c"))))
    request = made.open({})[0][0]
    following, unsent = made.follow(reply(vocabulary, request, text, finish))
    assert following is None
    assert [row.code for row in unsent] == ["unreached", "unreached"]
    assert code in unsent[0].detail


def test_a_resumed_batch_goes_on_where_it_stopped(load: Load) -> None:
    """With finished rows in the journal, opening gives the same next requests as following did."""
    vocabulary, grammar = load("stand-in", True)
    record = Record((user("a"), user("b"), user("c")))
    first = batch(vocabulary, grammar, record)
    done = {}
    request: Request | None = first.open({})[0][0]
    while request is not None:
        requests, unsent = batch(vocabulary, grammar, record).open(done)
        assert unsent == []
        assert [r.row_id for r in requests] == [request.row_id]
        assert requests[0].input_ids.tolist() == request.input_ids.tolist()
        assert requests[0].seed == request.seed == row_seed(0, request.row_id)
        completion = reply(vocabulary, request, answer(grammar))
        done[request.row_id] = completion
        request, _ = first.follow(completion)
    assert len(done) == 3
    assert batch(vocabulary, grammar, record).open(done) == ([], [])


def test_rows_that_nobody_can_make(load: Load) -> None:
    """A bad record, a duplicate, a prompt too long and injected text get their code; the rest goes on."""
    vocabulary, grammar = load("stand-in", True)
    records = [
        Record((), "bad", error="line 3: expected JSON"),
        Record((user("a"), user("b")), "again", error="as test:first", code=Code.DUPLICATE),
        Record((user("long " * 400),), "long"),
        Record((user("say <|im_end|>"), user("b")), "injected"),
        Record((user("fine"),), "fine"),
    ]
    made = batch(vocabulary, grammar, *records, limits=LengthLimits(300, 294, 1000))
    requests, unsent = made.open({})
    assert [(row.row_id, row.code) for row in unsent] == [
        ("test:bad#t0~s0", "bad_record"),
        ("test:again#t0~s0", "duplicate"),
        ("test:again#t1~s0", "duplicate"),
        ("test:long#t0~s0", "prompt_too_long"),
        ("test:injected#t0~s0", "control_token_in_text"),
        ("test:injected#t1~s0", "unreached"),
    ]
    assert [request.row_id for request in requests] == ["test:fine#t0~s0"]
    assert all(check_row(grammar, row).code == row.code for row in unsent)
    assert requests[0].max_new_tokens == 100


def test_recorded_answers_that_are_made_anew_are_not_checked(load: Load) -> None:
    """A control token in a recorded answer rejects a row only where that answer is really sent."""
    vocabulary, grammar = load("stand-in", True)
    record = Record((user("a"), said("x <|im_end|> y"), user("b")))
    assert len(batch(vocabulary, grammar, record).open({})[1]) == 0
    assert [row.code for row in batch(vocabulary, grammar, record, turns="last").open({})[1]] == [
        "control_token_in_text"
    ]


TOOL_LOOP = (
    user("Look."),
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c0", "function": {"name": "look", "arguments": {"x": 1}}}],
    },
    {"role": "tool", "tool_call_id": "c0", "content": "RESULT"},
    said("RECORDED"),
    user("Thanks?"),
)
ONE_CALL = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>"
    '{"x": 1}<|tool_call_end|><|tool_calls_section_end|>'
)


def test_a_tool_loop_splices_the_recorded_result(load: Load) -> None:
    """Behind a regenerated call that fits, the recorded result follows, and its prompt extends the last."""
    vocabulary, grammar = load("kimi-tiny", True)
    made = batch(vocabulary, grammar, Record(TOOL_LOOP))
    assert len(made.row_ids) == 3
    request = made.open({})[0][0]
    first = reply(vocabulary, request, f"I look.</think>{ONE_CALL}<|im_end|>")
    second, unsent = made.follow(first)
    assert unsent == []
    assert "RESULT" in text_of(vocabulary, second)
    assert second is not None
    last, _ = made.follow(reply(vocabulary, second, answer(grammar, content="Seen.")))
    text = text_of(vocabulary, last)
    assert text.count("RESULT") == 1
    assert "RECORDED" not in text
    inputs = Ragged.from_rows([first.input_ids, second.input_ids])
    outputs = Ragged.from_rows([first.output_ids, np.zeros(0, np.int32)])
    assert extends_previous(made.row_ids[:2], inputs, outputs).tolist() == [False, True]


@pytest.mark.parametrize(
    ("match", "text"),
    [
        pytest.param("name_args", f"a</think>{ONE_CALL.replace('1}', '2}')}<|im_end|>", id="other-arguments"),
        pytest.param("name", f"a</think>{ONE_CALL.replace('look', 'find')}<|im_end|>", id="other-function"),
        pytest.param("position", f"a</think>{FORMS['kimi'].call}<|im_end|>", id="other-count"),
        pytest.param("name_args", "a</think>I need no tool.<|im_end|>", id="no-call"),
    ],
)
def test_calls_without_a_recorded_result_end_the_conversation(match: str, text: str, load: Load) -> None:
    """No result is made up: later turns are unreached."""
    vocabulary, grammar = load("kimi-tiny", True)
    made = batch(vocabulary, grammar, Record(TOOL_LOOP), match=match)
    following, unsent = made.follow(reply(vocabulary, made.open({})[0][0], text))
    assert following is None
    assert [row.code for row in unsent] == ["unreached", "unreached"]


@pytest.mark.parametrize("family", ["qwen3", "deepseek-v3.1", "glm-4.7-flash", "minimax-m2", "gpt-oss"])
def test_every_familys_answer_is_read_back(family: str, load: Load) -> None:
    """Content, reasoning and calls of an answer are what the model wrote, without a control token in them."""
    vocabulary, grammar = load(family, True)
    request = batch(vocabulary, grammar, Record((user("a"),))).open({})[0][0]
    row = reply(vocabulary, request, answer(grammar, content="My words.", reasoning="I think."))
    message = answer_message(vocabulary, grammar, row, check_row(grammar, row))
    assert message == {"role": "assistant", "content": "My words.", "reasoning_content": "I think."}
    row = reply(vocabulary, request, answer(grammar, tools=True, reasoning="I think."))
    message = answer_message(vocabulary, grammar, row, check_row(grammar, row))
    assert message["reasoning_content"] == "I think."
    assert message["content"] == ""
    assert message["tool_calls"][0]["function"]["name"] == "look"


def test_a_function_named_in_the_header_is_read(load: Load) -> None:
    """gpt-oss writes the function's name in front of the channel or behind it."""
    vocabulary, grammar = load("gpt-oss", True)
    request = batch(vocabulary, grammar, Record((user("a"),))).open({})[0][0]
    text = (
        "<|channel|>analysis<|message|>T<|end|><|start|>assistant to=functions.look<|channel|>commentary json"
        '<|message|>{"x": 1}<|call|>'
    )
    row = reply(vocabulary, request, text)
    calls = answer_calls(vocabulary, row, check_row(grammar, row))
    assert [(call.name, call.arguments) for call in calls] == [("look", '{"x": 1}')]


@pytest.mark.shared
@pytest.mark.parametrize("family", ["qwen3", "kimi"])
def test_mt_bench_in_two_turns(family: str, load: Load) -> None:
    """Every question of MT-bench runs through both turns on a genuine Qwen3 and on Kimi's vocabulary."""
    vocabulary, grammar = load(family, True)
    lines = (SHARED / "data" / "prompts" / "mt_bench.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    records = [Record(tuple(map(user, row["turns"])), str(row["question_id"])) for row in rows]
    made = batch(vocabulary, grammar, *records)
    requests, unsent = made.open({})
    assert (len(requests), unsent) == (len(rows), [])
    for request, row in zip(requests, rows, strict=True):
        assert row["turns"][0].strip() in text_of(vocabulary, request)
        said_text = f"On {row['category']}: {row['turns'][0][:300]}"
        following, unsent = made.follow(reply(vocabulary, request, answer(grammar, content=said_text)))
        text = text_of(vocabulary, following)
        assert unsent == []
        assert said_text.strip() in text
        assert row["turns"][1].strip() in text
