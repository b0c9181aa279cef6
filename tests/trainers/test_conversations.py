"""The conversation form: what was said, as text, and SpecForge's text path over it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from deployments.local.presets import STANDIN_MODEL
from tasks.errors import IdentityError, SourceError
from tasks.export.open import export_opened
from tasks.export.options import ExportOptions
from tasks.grammar.check import check_rows
from tasks.grammar.grammar import Grammar, discover_grammar
from tasks.job.spec import JobSpec
from tasks.ledger.ledger import Ledger
from tasks.prompts.opening import open_sources
from tasks.prompts.plan_batches import extend_plan
from tasks.rows.records import CheckedBatch, Completion, Ragged, Verdict, as_ids
from tasks.store.contract import ObjectStore, canonical, sha256_hex
from tasks.store.opening import open_store
from tasks.tokenizer.template import render
from tasks.tokenizer.vocabulary import Vocabulary, load_vocabulary
from tasks.turns.calls import as_call, splice_results
from tasks.turns.conversations import Conversation, plan_conversations
from tasks.turns.replies import answer_message
from tests.support.jobs import write_prompts
from tests.support.stores import commit_checked, folder_store
from tests.trainers.conftest import Read

RECORDS = 9
GOLDEN = Path(__file__).resolve().parents[1] / "data" / "conversations" / "tool-loop.jsonl"
CALL = "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>"
CALL += '{"what": "7+2"}<|tool_call_end|><|tool_calls_section_end|>'
DECLARED = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
RECORDED = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"what": "7+2"}'}}
TOOL_RECORD = {
    "id": "w",
    "tools": DECLARED,
    "messages": [
        {"role": "user", "content": "Look up 7+2."},
        {"role": "assistant", "content": "Looking.", "tool_calls": [RECORDED]},
        {"role": "tool", "tool_call_id": "c1", "content": "It says 9."},
        {"role": "assistant", "content": "Nine."},
    ],
}
"""A recorded tool loop: its answers are made again, its result answers the call that is made then."""


def answered(conversation: Conversation, vocabulary: Vocabulary, grammar: Grammar) -> list[Completion]:
    """Return a made-up answer to every turn, each later prompt rendered behind the answer before."""
    rows: list[Completion] = []
    answers: list[list[dict[str, Any]]] = []
    for turn, name in enumerate(conversation.row_ids):
        messages, own = conversation.history(turn, answers)
        prompt = render(vocabulary, messages, conversation.tools, own=own)
        said = CALL if conversation.tools and turn == 0 else f"It is the answer of turn {turn}."
        text = f"Let me see {turn}.</think>{said}<|im_end|>"
        output = as_ids(vocabulary.tokenizer.encode(text))
        rows.append(Completion(name, prompt, output, "stop", int(output[-1])))
        verdict = judged(grammar, rows[-1:])[0]
        answer = answer_message(vocabulary, grammar, rows[-1], verdict)
        calls = [as_call(call) for call in answer.get("tool_calls", ())]
        recorded, results = conversation.results_after(turn)
        spliced = splice_results(calls, recorded, results, "name_args") if calls else []
        assert spliced is not None
        answers.append([answer, *spliced])
    return rows


def judged(grammar: Grammar, rows: list[Completion]) -> tuple[Verdict, ...]:
    """Return the rows' verdicts: all canonical."""
    inputs, outputs = (
        Ragged.from_rows([getattr(row, kind) for row in rows]) for kind in ("input_ids", "output_ids")
    )
    verdicts = tuple(check_rows(grammar, inputs, outputs, rows))
    assert {verdict.code for verdict in verdicts} <= {"complete", "complete_tools"}
    return verdicts


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    """A finished job of nine records, every third with two turns, and a tool loop, of the embedded model."""
    prompts = write_prompts(tmp_path / "p.jsonl", RECORDS)
    with prompts.open("a") as file:
        file.write(json.dumps(TOOL_RECORD) + "\n")
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
    for batch in extend_plan(ledger, sources, spec, sha256_hex(canonical(resolved))).batches:
        conversations = plan_conversations(sources.read(batch), "each", 1)
        rows = [row for each in conversations for row in answered(each, vocabulary, grammar)]
        turns = [turn for each in conversations for turn in each.turns]
        checked = CheckedBatch(
            batch=batch.index,
            row_ids=tuple(row.row_id for row in rows),
            inputs=Ragged.from_rows([row.input_ids for row in rows]),
            outputs=Ragged.from_rows([row.output_ids for row in rows]),
            verdicts=judged(grammar, rows),
            accepted=np.ones(len(rows), np.bool_),
            completions=tuple(rows),
            turns=np.array(turns, np.int16),
            samples=np.zeros(len(rows), np.int16),
            metadata=("{}",) * len(rows),
        )
        commit_checked(ledger, checked, batch.start)
    return made


def told(store: ObjectStore, out: Path) -> list[dict[str, Any]]:
    """Export as conversations and return the rows."""
    export_opened(
        [store], [1.0], ExportOptions(to="specforge-conversations"), folder_store(out), lambda line: None
    )
    files = sorted((out / "train").iterdir())
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def test_conversations_say_what_was_said(tmp_path: Path, store: ObjectStore) -> None:
    """The record's questions, the model's own answers, reasoning under its own field; nothing else."""
    lines = {line["id"]: line for line in told(store, tmp_path / "out")}
    assert len(lines) == RECORDS + RECORDS // 3 + 2
    for line in lines.values():
        assert set(line) == {"id", "conversations", "tools"}
        assert all(
            set(message) == {"role", "content", "reasoning_content", "tool_calls", "name", "tool_call_id"}
            for message in line["conversations"]
        )
    second = [(m["role"], m["content"], m["reasoning_content"]) for m in lines["p:p2#t1~s0"]["conversations"]]
    assert second == [
        ("user", "What is 2+2?", ""),
        ("assistant", "It is the answer of turn 0.", "Let me see 0."),
        ("user", "And one more?", ""),
        ("assistant", "It is the answer of turn 1.", "Let me see 1."),
    ]
    assert lines["p:p2#t0~s0"]["conversations"] == lines["p:p2#t1~s0"]["conversations"][:2]


def test_a_tool_loop_is_told(tmp_path: Path, store: ObjectStore) -> None:
    """The call that the model made, the recorded result under that call's id, the tools; as JSON texts."""
    lines = {line["id"]: line for line in told(store, tmp_path / "out")}
    loop = lines["p:w#t1~s0"]
    assert json.loads(loop["tools"]) == DECLARED
    user, call, result, answer = loop["conversations"]
    assert (user["role"], user["content"]) == ("user", "Look up 7+2.")
    assert json.loads(call["tool_calls"]) == [RECORDED | {"id": "functions.look:0"}]
    assert (call["content"], call["reasoning_content"]) == ("", "Let me see 0.")
    assert (result["role"], result["content"], result["name"]) == ("tool", "It says 9.", "look")
    assert result["tool_call_id"] == "functions.look:0"
    assert (answer["content"], json.loads(answer["tool_calls"])) == ("It is the answer of turn 1.", [])
    assert lines["p:w#t0~s0"]["conversations"] == [user, call]
    assert orjson.dumps(loop) + b"\n" == GOLDEN.read_bytes()  # what SpecForge had read, see below


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
    """Its text path supervises the last answer, tokenized again.

    The reasoning is there to read, and yet is not learnt: Kimi's template empties that of finished turns.
    """
    lines = told(store, tmp_path / "out")
    found = read("read_conversations.py", STANDIN_MODEL, *sorted((tmp_path / "out" / "train").iterdir()))
    assert len(found) == len(lines)
    for line in lines:  # it shuffles
        answer = line["conversations"][-1]
        if answer["content"]:
            assert any(f"<think></think>{answer['content']}" in row["learnt"] for row in found)


@pytest.mark.trainers
def test_specforge_trains_on_the_call(tmp_path: Path, store: ObjectStore, read: Read) -> None:
    """It renders the call as the model wrote it, and the result under the id of the call.

    A call is not a finished turn for Kimi's template, so its reasoning is learnt with it.
    """
    told(store, tmp_path / "out")
    found = read("read_conversations.py", STANDIN_MODEL, *sorted((tmp_path / "out" / "train").iterdir()))
    (call,) = (row for row in found if CALL in row["learnt"])
    assert f"<think>Let me see 0.</think>{CALL}<|im_end|>" in call["learnt"]
    assert '<|im_system|>tool_declare<|im_middle|>[{"' in call["text"]
    (answer,) = (row for row in found if "It says 9." in row["text"])
    result = "<|im_system|>tool<|im_middle|>## Return of functions.look:0\nIt says 9.<|im_end|>"
    assert f"{CALL}<|im_end|>{result}<|im_assistant|>" in answer["text"]
    assert "<think></think>It is the answer of turn 1.<|im_end|>" in answer["learnt"]
    assert CALL not in answer["learnt"]
