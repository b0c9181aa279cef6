"""The conversation form: what was said, as text, and SpecForge's text path over it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deployments.presets import STANDIN_MODEL
from tasks.errors import IdentityError, SourceError
from tasks.exporting import export_opened
from tasks.records import CheckedBatch, Completion, Ragged, as_ids
from tasks.spec import JobSpec
from tasks.storage.ledger import Ledger
from tasks.storage.source import open_sources
from tasks.storage.store import ObjectStore, canonical, open_store, sha256_hex
from tasks.storage.trainers.options import ExportOptions
from tasks.tokens.check import check_rows
from tasks.tokens.grammar import discover_grammar
from tasks.tokens.sampling import LengthLimits, resolve_sampling
from tasks.tokens.turns import BatchTurns, plan_conversations
from tasks.tokens.vocabulary import load_vocabulary
from tests.jobs import write_prompts
from tests.stores import commit_checked
from tests.trainers.conftest import Read

RECORDS = 9


def answered(turns: BatchTurns, encode: Any) -> list[Completion]:
    """Return a made-up answer to every turn, each later prompt built on the answer before."""
    requests, unsent = turns.open({})
    assert not unsent
    found: dict[str, Completion] = {}
    for number, request in enumerate(requests, start=1):
        following: Any = request
        while following is not None:
            text = f"Let me see: {number}.</think>It is {number}, of turn {following.turn}.<|im_end|>"
            ids = as_ids(encode(text))
            row = Completion(following.row_id, following.input_ids, ids, "stop", int(ids[-1]))
            found[row.row_id] = row
            following, _ = turns.follow(row)
    return [found[name] for name in turns.row_ids]


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    """A finished job of nine records, every third with two turns, of the embedded model's tokenizer."""
    prompts = write_prompts(tmp_path / "p.jsonl", RECORDS)
    spec = JobSpec(
        name="told",
        model={"tokenizer": str(STANDIN_MODEL)},
        prompts={"sources": [str(prompts)]},
        servers={"urls": ["http://127.0.0.1:1"]},
        batch={"rows": 5},
        store={"uri": str(tmp_path / "store")},
    )
    vocabulary = load_vocabulary(spec.model)
    grammar = discover_grammar(vocabulary)
    resolved = {"tokenizer": vocabulary.describe(), "grammar": grammar.describe()}
    made = open_store(spec.store, spec.job_id)
    ledger, sources = Ledger(made, spec.job_id), open_sources(spec.prompts)
    ledger.open_job(spec, resolved)
    sampling = resolve_sampling(spec.sampling, vocabulary, grammar)
    for batch in ledger.extend_plan(sources, spec, sha256_hex(canonical(resolved))).batches:
        conversations = plan_conversations(sources.read(batch), "each", 1)
        turns = BatchTurns(conversations, vocabulary, grammar, sampling, LengthLimits())
        rows = answered(turns, vocabulary.tokenizer.encode)
        inputs, outputs = (
            Ragged.from_rows([getattr(row, name) for row in rows]) for name in ("input_ids", "output_ids")
        )
        verdicts = tuple(check_rows(grammar, inputs, outputs, rows))
        assert {verdict.code for verdict in verdicts} == {"complete"}
        checked = CheckedBatch(
            batch=batch.index,
            row_ids=turns.row_ids,
            inputs=inputs,
            outputs=outputs,
            verdicts=verdicts,
            accepted=np.ones(len(rows), np.bool_),
            completions=tuple(rows),
            turns=turns.turn_numbers,
            samples=turns.sample_numbers,
            metadata=turns.metadata,
        )
        commit_checked(ledger, checked, batch.start)
    return made


def told(store: ObjectStore, out: Path) -> list[dict[str, Any]]:
    """Export as conversations and return the rows."""
    export_opened([store], [1.0], ExportOptions(to="specforge-conversations"), out, lambda line: None)
    files = sorted((out / "train").iterdir())
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def test_conversations_say_what_was_said(tmp_path: Path, store: ObjectStore) -> None:
    """The record's questions, the model's own answers, reasoning under its own field; nothing else."""
    lines = {line["id"]: line for line in told(store, tmp_path / "out")}
    assert len(lines) == RECORDS + RECORDS // 3
    for line in lines.values():
        assert set(line) == {"id", "conversations", "tools"}
        assert all(
            set(message) == {"role", "content", "reasoning_content", "tool_calls"}
            for message in line["conversations"]
        )
    second = [(m["role"], m["content"], m["reasoning_content"]) for m in lines["p:p2#t1~s0"]["conversations"]]
    assert second == [
        ("user", "What is 2+2?", ""),
        ("assistant", "It is 3, of turn 0.", "Let me see: 3."),
        ("user", "And one more?", ""),
        ("assistant", "It is 3, of turn 1.", "Let me see: 3."),
    ]
    assert lines["p:p2#t0~s0"]["conversations"] == lines["p:p2#t1~s0"]["conversations"][:2]


def test_a_changed_prompt_file_is_not_told(tmp_path: Path, store: ObjectStore) -> None:
    """Messages come from the source: another one would say what was never asked."""
    path = tmp_path / "p.jsonl"
    path.write_text(path.read_text().replace("What is 1+1", "What is 1+7"))
    with pytest.raises(SourceError, match="expected the records that were planned"):
        told(store, tmp_path / "out")


def test_another_tokenizer_is_not_told(tmp_path: Path, store: ObjectStore) -> None:
    """Ids are decoded by the tokenizer that made them, or not at all."""
    job = json.loads(store.get("job.json"))
    job["resolved"]["tokenizer"]["template_sha256"] = "another"
    store.put("job.json", canonical(job))
    with pytest.raises(IdentityError, match="template_sha256: made with another"):
        told(store, tmp_path / "out")


@pytest.mark.trainers
def test_specforge_trains_on_the_answer(tmp_path: Path, store: ObjectStore, read: Read) -> None:
    """Its text path supervises the last answer: its reasoning and its content, tokenized again."""
    lines = told(store, tmp_path / "out")
    found = read("read_conversations.py", STANDIN_MODEL, *sorted((tmp_path / "out" / "train").iterdir()))
    assert len(found) == len(lines)
    for line in lines:  # it shuffles
        answer = line["conversations"][-1]
        assert any(answer["reasoning_content"] in text and answer["content"] in text for text in found)
