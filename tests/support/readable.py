"""A dataset that reads as text: rows of the stand-in's own tokenizer, one of which text would not survive."""

from pathlib import Path
from typing import Any

from deployments.local.presets import STANDIN_MODEL
from tasks.job.spec import ModelSpec
from tasks.ledger.batch import Batch, Span
from tasks.ledger.ledger import Ledger
from tasks.ledger.plan import plan_object
from tasks.rows.verdicts import Code
from tasks.store.contract import ObjectStore, canonical
from tasks.tokenizer.vocabulary import Vocabulary, load_vocabulary
from tests.support.stores import Row, make_store

SCRIPT = "<script>alert('own')</script> & <b>bold</b>"
"""What prompts of the dataset say."""

SPLIT_ROW = "talk:split#t0~s0"
"""Its content spells one token in two: decoded and encoded again its ids are others."""


def readable_store(folder: Path, planned: int = 3) -> tuple[ObjectStore, Vocabulary]:
    """Commit three batches below `folder`: two sources, a cut row, three codes of rejected ones.

    Args:
        folder: where the job's prefix is made.
        planned: how many batches the plan has.
    """
    vocabulary = load_vocabulary(ModelSpec(tokenizer=str(STANDIN_MODEL)))
    batches = _batches(vocabulary)
    resolved = {"tokenizer": vocabulary.describe(), "grammar": {"family": "kimi"}, "sampling": {"top_p": 0.9}}
    store = make_store(folder, batches, "readable", resolved, str(STANDIN_MODEL))
    ledger = Ledger(store, store.uri.rpartition("/")[2])
    portion = tuple(
        Batch(index, 4 * index, 4 * index + 4, f"f{index}", (Span("sums", 1, 4, 0),))
        for index in range(planned)
    )
    sources = (("sums", "sums.jsonl"),)
    store.put("plan/000000.json", canonical(plan_object(ledger.job_id, 0, sources, portion, ())))
    return store, vocabulary


def _batches(vocabulary: Vocabulary) -> list[list[Row]]:
    def row(name: str, ask: str, think: str, say: str, **fields: Any) -> Row:
        number = len(rows)
        encode = vocabulary.dialect.encode
        prompt = f"<|im_user|>user<|im_middle|>{ask}<|im_end|><|im_assistant|>assistant<|im_middle|><think>"
        made = [("reasoning", think), ("closer", "</think>"), ("content", say), ("end", "<|im_end|>")]
        parts = [(kind, tuple(encode(text))) for kind, text in made if text]
        if name == "split":
            parts[2] = ("content", _split(vocabulary, parts[2][1]))
        size = sum(len(ids) for _, ids in parts)
        facts = {
            "server": f"http://127.0.0.1:{30000 + number % 2}",
            "server_version": "0.5.23",
            "completion_tokens": size,
            "latency_seconds": 2.0 + number,
            "finished_at": 1_750_000_000.0 + 3.0 * number,
            "attempts": 1,
        }
        rows.append(Row(name, tuple(encode(prompt)), tuple(parts), facts=facts, **fields))
        return rows[-1]

    rows: list[Row] = []
    for number in range(6):
        row(
            f"r{number}",
            f"What is {number}+2?",
            "I add them. " * (number + 1),
            f"{number + 2}",
            source="sums",
        )
    row("split", "What is a lighthouse?", "A tower.", "A lighthouse is a tower.", source="talk")
    row("script", SCRIPT, "Short.", "That is a page.", source="talk")
    row("cut", "Describe a river.", "Water flows " * 9, "A river", source="talk", code=Code.CUT_IN_CONTENT)
    for code in (Code.REPETITION, Code.REPETITION, Code.AFTER_END):
        row(
            f"bad{len(rows)}",
            SCRIPT,
            "Again. ",
            "again " * 6,
            source="talk",
            code=code,
            offset=30,
            detail="no <b>end</b>",
        )
    return [rows[:4], rows[4:8], rows[8:]]


def _split(vocabulary: Vocabulary, ids: tuple[int, ...]) -> tuple[int, ...]:
    """Return other ids for the same text: the first token that can be said in two is."""
    for at, id in enumerate(ids):
        text = vocabulary.decode([id])
        for cut in range(1, len(text)):
            halves = (vocabulary.dialect.encode(text[:cut]), vocabulary.dialect.encode(text[cut:]))
            if all(len(half) == 1 for half in halves) and vocabulary.decode([*halves[0], *halves[1]]) == text:
                return (*ids[:at], *halves[0], *halves[1], *ids[at + 1 :])
    raise AssertionError("expected a token that two others spell")
