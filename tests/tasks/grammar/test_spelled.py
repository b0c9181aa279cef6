"""Openers and closers that are several ordinary ids: vocabularies without a token for `<think>`."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.errors import TokenizerError
from tasks.grammar.check import check_row
from tasks.grammar.grammar import discover_grammar
from tasks.job.spec import ModelSpec
from tasks.rows.records import Completion, as_ids
from tasks.tokenizer.template import render
from tasks.tokenizer.vocabulary import load_vocabulary
from tests.support.families import Load

pytestmark = pytest.mark.family

OPENER, CLOSER = [13708, 766, 29], [522, 26865, 29]
"""`<think>` and `</think>` in Qwen2.5's vocabulary."""


@pytest.mark.parametrize(
    ("text", "code"),
    [
        pytest.param("Hm.\n</think>\n\nSo.<|im_end|>", "complete", id="melted"),
        pytest.param("Hm \n</think>So.<|im_end|>", "complete", id="bare"),
        pytest.param("a < b, <div>?\n</think>\nSo: <b> </b>.<|im_end|>", "complete", id="other-tags"),
        pytest.param("Hm.\nSo.<|im_end|>", "closer_missing", id="no-closer"),
        pytest.param("Hm\n</think>\nSo\n</think>\n.<|im_end|>", "closer_repeated", id="two-closers"),
        pytest.param("Hm.\n<think>\nHm\n</think>\nSo.<|im_end|>", "opener_in_output", id="opener"),
        pytest.param("\n</think>\nSo.<|im_end|>", "reasoning_empty", id="empty"),
    ],
)
def test_spelled_tags_are_judged_like_tokens(text: str, code: str, load: Load) -> None:
    """The same verdicts as with control tokens, and segments that hold every id of a tag."""
    vocabulary, grammar = load("spelled", True)
    assert (list(grammar.opener_ids), list(grammar.closer_ids)) == (OPENER, CLOSER)
    prompt = render(vocabulary, [{"role": "user", "content": "Is </think> a tag?"}])
    output = as_ids(vocabulary.dialect.encode(text))
    verdict = check_row(grammar, Completion("r", prompt, output, "stop"))
    assert verdict.code == code
    if code == "complete":
        kinds = [segment.kind for segment in verdict.segments]
        assert kinds == ["prompt", "reasoning", "closer", "content", "end"]
        ids = output[verdict.segments[2].start - prompt.size : verdict.segments[2].stop - prompt.size]
        assert vocabulary.decode(ids.tolist()).strip() == "</think>"


def test_a_job_may_name_spelled_tags(model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    """`model.grammar` takes a tag that is no control token where the template writes it, and no other."""
    folder = model_folder("spelled")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    template = (folder / "chat_template.jinja").read_text()
    (tmp_path / "chat_template.jinja").write_text(template.replace("think>", "muse>"))
    given = {"family": "chatml", "opener": "<muse>", "closer": "</muse>"}
    vocabulary = load_vocabulary(ModelSpec(tokenizer=str(tmp_path), grammar=given))
    grammar = discover_grammar(vocabulary)
    assert grammar.default.mode == "open"
    prompt = render(vocabulary, [{"role": "user", "content": "Well?"}])
    output = as_ids(vocabulary.dialect.encode("Hm.\n</muse>\nYes.<|im_end|>"))
    assert check_row(grammar, Completion("r", prompt, output, "stop")).code == "complete"
    wrong = {"family": "chatml", "opener": "<mull>", "closer": "</mull>"}
    vocabulary = load_vocabulary(ModelSpec(tokenizer=str(tmp_path), grammar=wrong))
    with pytest.raises(TokenizerError, match=r"<mull>.*is no control token.*does not spell it"):
        discover_grammar(vocabulary)
