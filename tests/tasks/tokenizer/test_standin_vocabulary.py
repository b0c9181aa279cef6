"""The embedded model's folder through the whole room: prompt ids, verdicts, conversations."""

from pathlib import Path

import pytest

from tasks.grammar.check import check_row
from tasks.grammar.grammar import Grammar, discover_grammar
from tasks.job.spec import ModelSpec, SamplingSpec
from tasks.rows.records import Completion, Ids, as_ids
from tasks.tokenizer.template import render
from tasks.tokenizer.vocabulary import Vocabulary, load_vocabulary
from tasks.turns.sampling import resolve_sampling

FOLDER = Path(__file__).resolve().parents[3] / "deployments" / "standin" / "model"
QUESTION = [{"role": "user", "content": "What is 2+2?"}]
CALL = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>"
    '{"a": 2}<|tool_call_end|><|tool_calls_section_end|>'
)


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    """The embedded model's tokenizer in thinking mode."""
    return load_vocabulary(ModelSpec(tokenizer=str(FOLDER), template_args={"thinking": True}))


@pytest.fixture(scope="module")
def grammar(vocabulary: Vocabulary) -> Grammar:
    """Its grammar."""
    return discover_grammar(vocabulary)


def ids(vocabulary: Vocabulary, text: str) -> Ids:
    """Return ids of a text with control tokens."""
    return as_ids(vocabulary.dialect.encode(text))


def test_the_prompt_ends_with_the_opener(vocabulary: Vocabulary, grammar: Grammar) -> None:
    """Kimi's template opens reasoning itself: the last prompt id is the opener."""
    prompt = render(vocabulary, QUESTION)
    assert prompt[-1] == vocabulary.control_ids["<think>"]
    assert vocabulary.decode(prompt) == (
        "<|im_user|>user<|im_middle|>What is 2+2?<|im_end|><|im_assistant|>assistant<|im_middle|><think>"
    )
    assert grammar.thinking
    assert grammar.family == "kimi"


@pytest.mark.parametrize(
    ("answer", "code", "kinds"),
    [
        pytest.param(
            "a</think>b<|im_end|>", "complete", "prompt reasoning closer content end", id="complete"
        ),
        pytest.param(
            f"a</think>{CALL}<|im_end|>",
            "complete_tools",
            "prompt reasoning closer tool_calls end",
            id="tools",
        ),
        pytest.param(
            f"a{CALL}<|im_end|>", "complete_tools", "prompt reasoning tool_calls end", id="tools-no-closer"
        ),
        pytest.param("a<|im_end|>", "closer_missing", "prompt reasoning unknown", id="no-closer"),
        pytest.param(
            "a</think>b</think>c<|im_end|>",
            "closer_repeated",
            "prompt reasoning closer content unknown",
            id="two-closers",
        ),
        pytest.param("<think>a</think>b<|im_end|>", "opener_in_output", "prompt unknown", id="opener"),
        pytest.param("</think>b<|im_end|>", "reasoning_empty", "prompt unknown", id="no-reasoning"),
        pytest.param(
            "a</think><|im_end|>", "content_empty", "prompt reasoning closer unknown", id="no-content"
        ),
        pytest.param(
            "a</think>b<|im_user|>c<|im_end|>",
            "turn_start_inside",
            "prompt reasoning closer content unknown",
            id="turn",
        ),
        pytest.param(
            "a</think>b<|im_end|>c<|im_end|>",
            "after_end",
            "prompt reasoning closer content end unknown",
            id="joined",
        ),
        pytest.param(
            "a</think>b[BOS]<|im_end|>",
            "control_unexpected",
            "prompt reasoning closer content unknown",
            id="bos",
        ),
    ],
)
def test_an_answer_gets_its_verdict(
    vocabulary: Vocabulary, grammar: Grammar, answer: str, code: str, kinds: str
) -> None:
    """Each departure from the canonical form has its own code, and the segments tile the sequence."""
    prompt, output = render(vocabulary, QUESTION), ids(vocabulary, answer)
    verdict = check_row(grammar, Completion("r", prompt, output, "stop", int(output[-1])))
    assert verdict.code == code
    assert " ".join(s.kind for s in verdict.segments) == kinds
    assert [s.start for s in verdict.segments] == [0, *(s.stop for s in verdict.segments[:-1])]
    assert verdict.segments[-1].stop == prompt.size + output.size


def test_sampling_comes_from_the_model(vocabulary: Vocabulary, grammar: Grammar) -> None:
    """What the job leaves out is the model's generation_config.json, and the cap of thinking mode."""
    resolved = resolve_sampling(SamplingSpec(), vocabulary, grammar)
    assert (resolved.temperature, resolved.top_p, resolved.max_new_tokens) == (0.7, 0.95, 32768)
