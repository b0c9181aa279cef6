"""Stores that commit 7993c23 wrote: later code resumes, retries, continues, verifies, exports and shows them.

They lie in `tests/data/stores_7993c23`; those whose name begins with `s3` were objects of an S3 server.
"""

import json

import pyarrow.parquet as pq
import pytest

from deployments.standin.launch import Standin
from tests.compatibility.conftest import Command, Opened, Verb
from tests.compatibility.stored import Stored, ids_of
from tests.flows.counted import prompts_started, rows_in

ROWS = 12
"""Of nine records, three of which have two turns."""

WHOLE = [pytest.param(name, id=name) for name in ("complete", "mix", "grammar", "s3")]
SHOWN = ("row_id", "verdict", "input_ids", "prompt_length", "segments", "finish_reason", "matched_stop")
EXPORTED = ("input_ids", "prompt_length", "verdict", "metadata")


def hold_to_its_rows(stored: Stored, verb: Verb) -> None:
    """Make sure that a store is trainable, and that `show` and `export` give the very rows of its files."""
    status, (audit,) = verb(stored, "verify", stored.argument)
    assert (status, audit["trainable"], audit["notices"]) == (0, True, []), audit
    assert all(check["passed"] and check["checked"] for check in audit["checks"])
    rows = stored.rows()
    assert audit["rows"]["accepted"] == len(rows) > 0
    _, shown = verb(stored, "show", stored.argument, "--n", "99")
    assert shown.pop() == {"summary": {"rows": len(rows)}}
    assert [[row[key] for key in SHOWN] for row in shown] == [[row[key] for key in SHOWN] for row in rows]
    assert [row["metadata"] for row in shown] == [json.loads(row["metadata"]) for row in rows]
    verb(stored, "export", stored.argument, "--to", "parquet", "--out", "exported", "--dedup", "none")
    files = sorted((stored.folder / "exported").rglob("train/*.parquet"))
    exported = {row["row_id"]: row for file in files for row in pq.read_table(file).to_pylist()}
    assert exported.keys() == stored.accepted().keys()
    for row in rows:
        found, prompt, ids = exported[row["row_id"]], row["prompt_length"], row["input_ids"]
        assert {key: found[key] for key in EXPORTED} == {key: row[key] for key in EXPORTED}
        assert found["loss_mask"] == [0] * prompt + [1] * (len(ids) - prompt)


@pytest.mark.parametrize("name", [*WHOLE, "half", "half-retry"])
def test_a_store_is_read(opened: Opened, verb: Verb, name: str) -> None:
    """As it lies there, complete or not, it is trainable, shown and exported."""
    hold_to_its_rows(opened(name), verb)


@pytest.mark.parametrize("name", WHOLE)
def test_a_complete_store_is_not_made_again(opened: Opened, command: Command, name: str) -> None:
    """`run` finds every batch committed, generates nothing and leaves every object as it was."""
    stored = opened(name)
    before = stored.kept()
    ran = command(stored, "run", "job.yaml")
    assert ran.status == 0, ran.stderr
    assert (ran.answer["job_id"], ran.answer["generated_rows"]) == (stored.expected["job_id"], 0)
    assert ran.answer["batches"] == {"total": 2, "committed": 2, "skipped": 2, "failed": 0}
    assert ran.answer["rows"] == stored.expected["rows"]
    assert stored.kept() == before


@pytest.mark.parametrize("name", ["half", "s3-half"])
def test_a_half_done_store_is_resumed(
    opened: Opened, command: Command, verb: Verb, server: Standin, name: str
) -> None:
    """What receipts and journals have, here or as copies on S3, is kept; the end is that of a quiet run."""
    stored = opened(name)
    kept = {row["row_id"] for row in stored.rows("provenance")} | set(stored.expected["journalled"])
    before = prompts_started(server.url)
    ran = command(stored, "run", "job.yaml")
    assert ran.status == 0, ran.stderr
    assert 0 < len(kept) == ROWS - ran.answer["generated_rows"] < ROWS
    assert stored.shards() == stored.expected["shards"]
    begun = prompts_started(server.url) - before
    started = {row_id for row_id, key in rows_in(stored.objects).items() if begun[key]}
    assert started == set(rows_in(stored.objects)) - kept
    hold_to_its_rows(stored, verb)


def test_a_half_done_retry_goes_on(opened: Opened, command: Command, verb: Verb) -> None:
    """The journal of a killed retry is used by the same retry, which ends as one that was not killed."""
    stored = opened("half-retry")
    left = ROWS - len(stored.expected["journalled"])
    ran = command(stored, "retry", "store", *stored.expected["codes"])
    assert ran.status == 0, ran.stderr
    assert ran.answer["generated_rows"] == left
    assert stored.shards() == stored.expected["shards"]
    hold_to_its_rows(stored, verb)


def test_rejected_rows_are_made_again(opened: Opened, command: Command, verb: Verb) -> None:
    """The row that the first retry left cut is drawn once more; what was accepted stays as it was."""
    stored = opened("complete")
    before = stored.accepted()
    ran = command(stored, "retry", "store", "--rejected", "cut_in_content")
    assert ran.status == 0, ran.stderr
    assert ran.answer["generated_rows"] == 1
    assert ids_of(row for row in stored.rows() if row["row_id"] in before) == before
    assert sorted(receipt["generation"] for receipt in stored.receipts()) == [1, 2]
    hold_to_its_rows(stored, verb)


@pytest.mark.parametrize("name", ["grammar", "mix"])
def test_a_lost_shard_is_made_again(opened: Opened, command: Command, verb: Verb, name: str) -> None:
    """A named batch whose shard is gone gets the same bytes: the same seeds, prompts, grammar and mixture."""
    stored = opened(name)
    lost = stored.receipts()[1]["shard"]
    data = stored.objects.get(lost["key"])
    stored.objects.delete(lost["key"])
    ran = command(stored, "retry", "store", "--batches", "1")
    assert ran.status == 0, ran.stderr
    assert ran.answer["generated_rows"] == lost["rows"]
    assert stored.receipts()[1]["shard"] == lost
    assert stored.objects.get(lost["key"]) == data
    hold_to_its_rows(stored, verb)


@pytest.mark.parametrize("name", ["mix", "s3"])
def test_cut_rows_are_continued(opened: Opened, command: Command, verb: Verb, name: str) -> None:
    """Every cut row grows from where it stopped; turns that waited for one are made; the others stay."""
    stored = opened(name)
    before = {row["row_id"]: row for row in stored.rows()}
    counts = stored.expected["rows"]["by_verdict"]
    cut = {row_id for row_id, row in before.items() if row["verdict"].startswith("cut_in")}
    ran = command(stored, "continue", stored.argument, "--max-new-tokens", "300")
    assert ran.status == 0, ran.stderr
    assert ran.answer["generated_rows"] == len(cut) + counts.get("unreached", 0) > 0
    after = stored.accepted()
    grown = {row_id for row_id, row in before.items() if len(after[row_id]) > len(row["input_ids"])}
    assert grown == cut
    assert ids_of(before.values()) == {i: after[i][: len(row["input_ids"])] for i, row in before.items()}
    hold_to_its_rows(stored, verb)
