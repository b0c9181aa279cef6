"""Anybody's token data, judged by the same checker; and rows as people and `--json` see them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import DataError
from tasks.grammar.check import check_row
from tasks.grammar.foreign import judge_files
from tasks.grammar.foreign_rows import foreign_completions
from tasks.job.spec import SamplingSpec
from tasks.rows.lengths import LengthLimits
from tasks.tokenizer.template import render
from tasks.turns.conversations import plan_conversations
from tasks.turns.inspect_row import describe_refusal, describe_request, describe_verdict
from tasks.turns.sampling import resolve_sampling
from tests.support.answers import answer
from tests.support.byte_families import byte_family
from tests.support.families import Load
from tests.support.talk import Talk
from tests.tasks.turns.test_turns import Record, user


def forms(prompt: list[int], output: list[int]) -> dict[str, dict[str, Any]]:
    """Return one row in every form that is understood."""
    mask = [0] * len(prompt) + [1] * len(output)
    return {
        "two lists": {"prompt_ids": prompt, "output_ids": output},
        "prompt length": {"input_ids": prompt + output, "prompt_length": len(prompt)},
        "loss mask": {"input_ids": prompt + output, "loss_mask": mask},
        "with facts": {
            "prompt_ids": prompt,
            "output_ids": output,
            "finish_reason": "stop",
            "completion_tokens": len(output),
        },
    }


@pytest.mark.parametrize("form", forms([], []))
@pytest.mark.parametrize("family", ["stand-in", "qwen3", "gpt-oss"])
def test_every_form_is_read(family: str, form: str, load: Load) -> None:
    """The same row gets the same verdict in whichever form it is stored."""
    vocabulary, grammar = load(family, True)
    prompt = render(vocabulary, [user("Well?")]).tolist()
    good = vocabulary.dialect.encode(answer(grammar))
    for output, code in ((good, "complete"), (good[:-1], "cut_in_content")):
        if form == "with facts" and code != "complete":
            continue
        (row,) = foreign_completions(grammar, "f:1", forms(prompt, output)[form])
        assert (row.input_ids.tolist(), row.output_ids.tolist()) == (prompt, output)
        assert check_row(grammar, row).code == code


def test_given_facts_are_held_against_the_row(load: Load) -> None:
    """A count or a finish reason in the data is checked, not ignored."""
    vocabulary, grammar = load("stand-in", True)
    prompt = render(vocabulary, [user("Well?")]).tolist()
    output = vocabulary.dialect.encode(answer(grammar))
    row = {"prompt_ids": prompt, "output_ids": output}
    for extra, code in (
        ({"completion_tokens": 3}, "count_mismatch"),
        ({"prompt_tokens": 3}, "prompt_mismatch"),
        ({"finish_reason": "length"}, "complete"),  # an end id as the last allowed id
        ({"finish_reason": "stop", "output_ids": output[:-1]}, "end_missing"),
        ({"prompt_ids": [grammar.size, *prompt]}, "id_out_of_vocabulary"),
    ):
        (told,) = foreign_completions(grammar, "f:1", row | extra)
        assert check_row(grammar, told).code == code


Move = Callable[[list[int], int], list[int]]
MOVED: dict[str, tuple[Move, str]] = {
    "as it is": (lambda mask, at: mask, "complete"),
    "one earlier": (lambda mask, at: [*mask[: at - 1], 1, *mask[at:]], "prompt_mismatch"),
    "one later": (lambda mask, at: [*mask[:at], 0, *mask[at + 1 :]], "prompt_mismatch"),
    "all one to the left": (lambda mask, at: [*mask[1:], 0], "prompt_mismatch"),
    "padding behind": (lambda mask, at: [*mask[:-2], 1, 0], "complete"),
    "a hole": (lambda mask, at: [*mask[: at + 3], 0, *mask[at + 4 :]], "complete"),
}
"""What was done to the mask of two turns, the second starting at `at`; and the code."""


@pytest.mark.parametrize("change", MOVED)
@pytest.mark.parametrize("family", ["chatml closed", "gpt-oss header", "glm must"])
def test_every_supervised_span_is_judged(family: str, change: str) -> None:
    """A second turn is an output of its own; where its mask starts elsewhere than the turn, that is told."""
    vocabulary, grammar = byte_family(family)
    prompt = render(vocabulary, [user("Well?")]).tolist()
    output = vocabulary.dialect.encode(answer(grammar))
    ids = [*prompt, *output, *prompt, *output]
    mask = ([0] * len(prompt) + [1] * len(output)) * 2
    at = len(ids) - len(output)
    moved, code = MOVED[change]
    rows = foreign_completions(grammar, "f:1", {"input_ids": ids, "loss_mask": moved(mask, at)})
    assert len(rows) == 2
    first = "prompt_mismatch" if change == "all one to the left" else "complete"
    assert [check_row(grammar, row).code for row in rows] == [first, code]


def test_the_worst_output_of_a_row_is_its_verdict(tmp_path: Path) -> None:
    """A fault in the first of two turns is told at its place, whatever the last one is."""
    vocabulary, grammar = byte_family("kimi open")
    prompt = render(vocabulary, [user("Well?")]).tolist()
    bad, good = (vocabulary.dialect.encode(f"a</think>b{more}<|im_end|>") for more in ("</think>c", ""))
    ids = [*prompt, *bad, *prompt, *good]
    mask = [0] * len(prompt) + [1] * len(bad) + [0] * len(prompt) + [1] * len(good)
    path = tmp_path / "theirs.jsonl"
    path.write_text(json.dumps({"input_ids": ids, "loss_mask": mask}))
    (judged,) = judge_files(path, grammar)
    assert (judged.verdict.code, judged.verdict.offset) == ("closer_repeated", len(prompt) + 3)
    assert judged.verdict.segments[-1].stop == len(ids)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        pytest.param(
            {"text": "x"}, r"f:1: expected prompt_ids \+ output_ids.*got the fields \['text'\]", id="text"
        ),
        pytest.param({"input_ids": [1]}, "expected prompt_ids", id="no-boundary"),
        pytest.param(
            {"input_ids": [1, 2], "prompt_length": 3}, r"prompt_length in \[0, 2\], got 3", id="past-end"
        ),
        pytest.param(
            {"input_ids": [1, 2], "loss_mask": [1]}, "2 input_ids but a loss_mask", id="mask-length"
        ),
        pytest.param(
            {"input_ids": [1, 2], "loss_mask": ["0", "1"]},
            "a loss_mask of .*: expected a number",
            id="mask-texts",
        ),
        pytest.param(
            {"input_ids": [1, 2], "prompt_length": True}, r"prompt_length in \[0, 2\], got True", id="bool"
        ),
        pytest.param(
            {"prompt_ids": [1], "output_ids": [5, True]}, r"f:1: output_ids: .*got True at 1", id="bool-id"
        ),
        pytest.param(
            {"prompt_ids": [1, 2**31], "output_ids": [5]}, r"f:1: prompt_ids: .*got 2147483648", id="wide-id"
        ),
        pytest.param({"prompt_ids": [2**70], "output_ids": [5]}, "f:1: prompt_ids: token ids", id="no-int64"),
        pytest.param({"prompt_ids": 7, "output_ids": [5]}, "f:1: prompt_ids: ", id="no-list"),
        pytest.param({"prompt_ids": [1], "output_ids": [[5]]}, "f:1: output_ids: token ids", id="nested"),
        pytest.param({"prompt_ids": ["a"], "output_ids": [1]}, "prompt_ids: token ids must be", id="texts"),
        pytest.param({"prompt_ids": [1], "output_ids": [-1]}, r"output_ids: .*got -1", id="negative"),
    ],
)
def test_what_is_no_row_is_named(record: dict[str, Any], message: str, load: Load) -> None:
    """Line, field, expected and got."""
    _, grammar = load("stand-in", True)
    with pytest.raises(DataError, match=message):
        foreign_completions(grammar, "f:1", record)


def test_rows_for_people_are_json(load: Load) -> None:
    """What would be sent shows its tail, what would not shows why, a verdict shows segments."""
    vocabulary, grammar = load("stand-in", True)
    resolved = resolve_sampling(SamplingSpec(), vocabulary, grammar)
    records = [Record((user("Well?"),), "good"), Record((user("</think>"),), "bad")]
    turns = Talk(plan_conversations(records, "each", 1), vocabulary, grammar, resolved, LengthLimits())
    requests, unsent = turns.open({})
    sent = describe_request(vocabulary, grammar, requests[0])
    assert json.loads(json.dumps(sent))["tail"]["names"][-1] == "<think>"
    assert sent["control_tokens"][0] == {"at": 0, "id": requests[0].input_ids[0], "token": "<|im_user|>"}
    assert describe_refusal(unsent[0])["refused"]["code"] == "control_token_in_text"
    (row,) = foreign_completions(
        grammar,
        "f:1",
        {"prompt_ids": sent["input_ids"], "output_ids": vocabulary.dialect.encode(answer(grammar))},
    )
    told = describe_verdict("f:1", check_row(grammar, row))
    assert told["verdict"] == "complete"
    assert [segment["kind"] for segment in json.loads(json.dumps(told))["segments"]] == [
        "prompt",
        "reasoning",
        "closer",
        "content",
        "end",
    ]
