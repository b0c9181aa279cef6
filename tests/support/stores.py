"""Small datasets made by hand: rows of a made-up chat format, committed as a job's batches."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from tasks.dataset.shard import encode_frequencies, encode_provenance, encode_rejected, encode_shard
from tasks.job.spec import JobSpec, StoreSpec
from tasks.ledger.ledger import Ledger, Receipt
from tasks.rows.records import CheckedBatch, Completion, Ragged, Segment, Verdict, as_ids
from tasks.rows.verdicts import CANONICAL, CUT, Code
from tasks.store.contract import ObjectStore, canonical, sha256_hex
from tasks.store.opening import open_store

USER, ASSISTANT, THINK, CLOSE, END, TOOL, TOOL_END = 1, 2, 900, 901, 902, 903, 904
SIZE = 1000
RESOLVED: dict[str, Any] = {
    "tokenizer": {"size": SIZE, "template_sha256": "template", "files": {"tokenizer.json": "aa"}},
    "grammar": {"opener_ids": [THINK], "tails": [{"ids": [ASSISTANT, THINK], "mode": "open"}]},
}


@attrs.frozen(slots=True, eq=False)
class Row:
    """One row: a prompt that ends with the prefilled opener, and segments of what the model made."""

    name: str
    prompt: tuple[int, ...]
    made: tuple[tuple[str, tuple[int, ...]], ...]
    code: str = Code.COMPLETE
    turn: int = 0
    sample: int = 0
    extends: bool = False
    source: str = "s"
    offset: int = -1
    detail: str = ""
    facts: dict[str, Any] = attrs.field(factory=dict)

    @property
    def row_id(self) -> str:
        """Its id."""
        return f"{self.source}:{self.name}#t{self.turn}~s{self.sample}"

    @property
    def output(self) -> tuple[int, ...]:
        """What the model made."""
        return tuple(i for _, ids in self.made for i in ids)

    @property
    def ids(self) -> list[int]:
        """Prompt and output."""
        return [*self.prompt, *self.output]

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Named ranges that tile the row."""
        found = [Segment("prompt", 0, len(self.prompt))]
        for kind, ids in self.made:
            found.append(Segment(kind, found[-1].stop, found[-1].stop + len(ids)))
        return tuple(found)


def prompt_of(*words: int) -> tuple[int, ...]:
    """Return a first turn's prompt."""
    return (USER, *words, ASSISTANT, THINK)


def answer(reasoning: Sequence[int], content: Sequence[int]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return the segments of a complete answer."""
    return (
        ("reasoning", tuple(reasoning)),
        ("closer", (CLOSE,)),
        ("content", tuple(content)),
        ("end", (END,)),
    )


def plain(number: int, reasoning: int = 4, content: int = 3, **fields: Any) -> Row:
    """Return a complete row whose ids depend on its number alone."""
    words = [10 + (number * 7 + step) % 800 for step in range(3 + number % 4)]
    think = [10 + (number * 11 + step) % 800 for step in range(reasoning)]
    say = [10 + (number * 13 + step) % 800 for step in range(content)]
    return Row(f"r{number}", prompt_of(*words), answer(think, say), **fields)


def loop(name: str) -> list[Row]:
    """Return three turns of a tool loop: each prompt begins with the turn before, whole."""
    first = Row(
        name,
        prompt_of(20, 21),
        (
            ("reasoning", (30, 31)),
            ("closer", (CLOSE,)),
            ("tool_calls", (TOOL, 40, TOOL_END)),
            ("end", (END,)),
        ),
        Code.COMPLETE_TOOLS,
    )
    second = Row(
        name, (*first.ids, 50, 51, ASSISTANT, THINK), first.made, Code.COMPLETE_TOOLS, turn=1, extends=True
    )
    third = Row(name, (*second.ids, 52, ASSISTANT, THINK), answer((60,), (61, 62)), turn=2, extends=True)
    return [first, second, third]


def checked(batch: int, rows: Sequence[Row]) -> CheckedBatch:
    """Return rows as a checked batch: canonical and cut ones are accepted."""
    good = [Code(row.code) in CANONICAL | CUT for row in rows]
    completions = tuple(
        Completion(
            row.row_id, as_ids(row.prompt), as_ids(row.output), "stop", row.output[-1], facts=row.facts
        )
        for row in rows
    )
    return CheckedBatch(
        batch=batch,
        row_ids=tuple(row.row_id for row in rows),
        inputs=Ragged.from_rows([as_ids(row.prompt) for row in rows]),
        outputs=Ragged.from_rows([as_ids(row.output) for row in rows]),
        verdicts=tuple(Verdict(row.code, row.offset, row.segments, row.detail) for row in rows),
        accepted=np.array(good, np.bool_),
        completions=completions,
        turns=np.array([row.turn for row in rows], np.int16),
        samples=np.array([row.sample for row in rows], np.int16),
        metadata=('{"topic":"sums"}',) * len(rows),
        extends=np.array([row.extends for row in rows], np.bool_),
    )


def folder_store(folder: Path) -> ObjectStore:
    """Return a folder as a store."""
    return open_store(StoreSpec(uri=str(folder)))


def make_store(
    folder: Path,
    batches: Iterable[Sequence[Row]],
    name: str = "made",
    resolved: dict[str, Any] | None = None,
    tokenizer: str = "tiny",
) -> ObjectStore:
    """Commit `batches` below `folder` and return the job's store."""
    spec = JobSpec(
        name=name,
        model={"tokenizer": tokenizer},
        prompts={"sources": ["none.jsonl"]},
        servers={"urls": ["http://127.0.0.1:1"]},
        store={"uri": str(folder)},
    )
    store = open_store(StoreSpec(uri=str(folder)), spec.job_id)
    ledger = Ledger(store, spec.job_id)
    ledger.open_job(spec, resolved or RESOLVED)
    start = 0
    for index, rows in enumerate(batches):
        commit(ledger, index, rows, start)
        start += len(rows)
    return store


def commit(ledger: Ledger, index: int, rows: Sequence[Row], start: int, generation: int = 0) -> Receipt:
    """Commit rows as one generation of a batch."""
    return commit_checked(ledger, checked(index, rows), start, generation)


def commit_checked(ledger: Ledger, batch: CheckedBatch, start: int, generation: int = 0) -> Receipt:
    """Commit a checked batch as one generation."""
    index = batch.batch
    good = batch.accepted
    prompt, output = int(batch.inputs.lengths[good].sum()), int(batch.outputs.lengths[good].sum())
    lost = int((batch.inputs.lengths + batch.outputs.lengths)[~good].sum())
    accepted, total, put = int(good.sum()), len(batch), ledger.put_file
    left = total - accepted
    codes = [str(verdict.code) for verdict in batch.verdicts]
    receipt = Receipt(
        job_id=ledger.job_id,
        batch=index,
        generation=generation,
        start=start,
        stop=start + total,
        fingerprint=f"f{index}",
        shard=put("shards", encode_shard(batch), accepted, prompt + output) if accepted else None,
        rejected=put("rejected", encode_rejected(batch), total - accepted, lost)
        if accepted < total
        else None,
        provenance=put("provenance", encode_provenance(batch), total, prompt + output + lost),
        frequencies=put("frequencies", encode_frequencies(batch), accepted, output) if accepted else None,
        rows={
            "total": total,
            "accepted": accepted,
            "rejected": left,
            "by_verdict": {code: codes.count(code) for code in sorted(set(codes))},
        },
        tokens={"prompt": prompt, "output": output},
        resolved_sha256=sha256_hex(canonical(RESOLVED)),
        template_sha256="template",
    )
    return ledger.commit(receipt)
