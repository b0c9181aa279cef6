"""The audit finds every kind of tampering, also when digests and counts were made to fit."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest

from tasks.audit.reread import audit
from tasks.job.spec import StoreSpec
from tasks.ledger.ledger import Ledger
from tasks.rows.records import Completion, Ragged, Verdict
from tasks.store.contract import ObjectStore, canonical
from tasks.store.opening import open_store
from tests.support.tampering import (
    RECEIPT,
    Tampering,
    accept_rejected,
    change_id,
    copy_row_from_other_batch,
    foreign_id,
    gap_in_segments,
    shift_boundary,
    shift_segment,
    swap_bytes,
    swap_files,
)

TAMPERINGS: dict[str, tuple[Callable[[Tampering], object], str]] = {
    "flip a bit of a shard's ids": (lambda t: t.flip("shard", 0.3), "objects"),
    "flip a bit of a shard's footer": (lambda t: t.flip("shard", 0.95), "objects"),
    "flip a bit of a rejected file": (lambda t: t.flip("rejected", 0.5), "objects"),
    "flip a bit of a provenance file": (lambda t: t.flip("provenance", 0.5), "objects"),
    "flip a bit of a frequencies file": (lambda t: t.flip("frequencies", 0.5), "objects"),
    "cut a shard short": (lambda t: t.store.put(t.file(), t.store.get(t.file())[:-10]), "objects"),
    "delete a shard": (lambda t: t.store.delete(t.file()), "objects"),
    "delete a rejected file": (lambda t: t.store.delete(t.file("rejected")), "objects"),
    "swap two shards' bytes": (swap_bytes, "objects"),
    "swap two receipts' shards": (swap_files, "counts"),
    "drop a row": (lambda t: t.forge(lambda rows: rows.pop(), fit=False), "counts"),
    "drop a row and fit the counts": (lambda t: t.forge(lambda rows: rows.pop()), "provenance"),
    "drop a batch's only rejected row": (lambda t: t.forge(lambda r: r.pop(), "rejected"), "receipts"),
    "repeat a row in its shard": (lambda t: t.forge(lambda rows: rows.append(rows[0])), "unique"),
    "repeat a row of another batch": (copy_row_from_other_batch, "unique"),
    "rename a row": (lambda t: t.forge(lambda rows: rows[0].update(row_id="s:x#t0~s0")), "provenance"),
    "spell a row id wrongly": (lambda t: t.forge(lambda rows: rows[0].update(row_id="q10")), "row_ids"),
    "exchange two rows": (lambda t: t.forge(lambda rows: rows.reverse()), "provenance"),
    "change a row's turn": (lambda t: t.forge(lambda rows: rows[0].update(turn=1)), "row_ids"),
    "shift the boundary of prompt and output": (lambda t: t.forge(shift_boundary), "values"),
    "shift a segment": (lambda t: t.forge(shift_segment), "grammar"),
    "leave a gap between segments": (lambda t: t.forge(gap_in_segments), "values"),
    "change the end id": (lambda t: t.forge(change_id), "values"),
    "put in an id outside the vocabulary": (lambda t: t.forge(foreign_id), "values"),
    "change an output id": (lambda t: t.forge(lambda r: r[0]["input_ids"].__setitem__(-2, 6)), "counts"),
    "accept a rejected row": (accept_rejected, "values"),
    "call a row by another code": (
        lambda t: t.forge(lambda r: r[0].update(verdict="complete_tools")),
        "grammar",
    ),
    "call a row by no code": (lambda t: t.forge(lambda r: r[0].update(verdict="fine")), "values"),
    "break a row's metadata": (lambda t: t.forge(lambda r: r[0].update(metadata="{")), "values"),
    "turn a rejected verdict's offset": (
        lambda t: t.forge(lambda r: r[0].update(verdict_offset=0), "rejected"),
        "grammar",
    ),
    "say in provenance that a rejected row was accepted": (
        lambda t: t.forge(lambda rows: [row.update(accepted=True) for row in rows], "provenance"),
        "provenance",
    ),
    "drop a provenance row": (lambda t: t.forge(lambda rows: rows.pop(0), "provenance"), "provenance"),
    "claim other frequencies": (lambda t: t.forge(lambda r: r[0].update(count=99), "frequencies"), "counts"),
    "edit a receipt's count": (
        lambda t: t.edit(RECEIPT, lambda value: value["rows"].update(accepted=99)),
        "receipts",
    ),
    "edit a receipt's verdicts": (
        lambda t: t.edit(RECEIPT, lambda v: v["rows"]["by_verdict"].update(complete=1, cut_in_content=7)),
        "receipts",
    ),
    "edit a receipt's tokens": (lambda t: t.edit(RECEIPT, lambda v: v["tokens"].update(output=1)), "counts"),
    "edit a receipt's fingerprint": (
        lambda t: t.edit(RECEIPT, lambda v: v.update(fingerprint="0" * 64)),
        "plan",
    ),
    "edit a receipt's range": (lambda t: t.edit(RECEIPT, lambda v: v.update(start=11)), "plan"),
    "copy a receipt to another batch": (
        lambda t: t.store.put("receipts/000007.g0.json", t.store.get(RECEIPT)),
        "receipts",
    ),
    "skip a generation": (
        lambda t: t.store.put("receipts/000001.g2.json", canonical(t.json(RECEIPT) | {"generation": 2})),
        "receipts",
    ),
    "cut a receipt short": (lambda t: t.store.put(RECEIPT, t.store.get(RECEIPT)[:-5]), "receipts"),
    "spell a receipt otherwise": (lambda t: t.store.put(RECEIPT, t.store.get(RECEIPT) + b"\n"), "receipts"),
    "name a receipt wrongly": (lambda t: t.store.put("receipts/1.g0.json", t.store.get(RECEIPT)), "receipts"),
    "resolve with another tokenizer": (
        lambda t: t.edit("job.json", lambda v: v["resolved"]["tokenizer"].update(template_sha256="new")),
        "job",
    ),
    "resolve with another sampling": (
        lambda t: t.edit("job.json", lambda v: v["resolved"]["sampling"].update(temperature=2)),
        "job",
    ),
    "edit job.json's spec": (
        lambda t: t.edit("job.json", lambda v: v["spec"]["sampling"].update(temperature=2)),
        "job",
    ),
    "break job.json's spec": (
        lambda t: t.edit("job.json", lambda v: v["spec"]["sampling"].update(temperature="hot")),
        "job",
    ),
    "call job.json newer than this program": (
        lambda t: t.edit("job.json", lambda v: v.update(schema=2)),
        "job",
    ),
    "delete job.json": (lambda t: t.store.delete("job.json"), "job"),
    "delete the plan": (lambda t: t.store.delete("plan/000000.json"), "plan"),
    "edit the plan's range": (
        lambda t: t.edit("plan/000000.json", lambda v: v["batches"][1].update(stop=19)),
        "plan",
    ),
    "edit the plan's sources": (
        lambda t: t.edit("plan/000000.json", lambda v: v["batches"][1]["spans"][0].__setitem__(0, "other")),
        "row_ids",
    ),
    "a plan object behind a gap": (lambda t: t.store.put("plan/000005.json", b"{}"), "plan"),
}


@pytest.fixture
def finished(tmp_path: Path, prompts: Callable[..., Path], kit: Any) -> ObjectStore:
    """A finished job of three batches in a folder."""
    spec = kit.job_spec(tmp_path, str(prompts()))
    store = open_store(spec.store, spec.job_id)
    kit.run_job(store, spec)
    return store


@pytest.mark.parametrize("name", TAMPERINGS)
def test_tampering_is_found(finished: ObjectStore, kit: Any, name: str) -> None:
    """The check that is meant for it fails, its problem names the object, and the data are not trainable."""
    tamper, check_name = TAMPERINGS[name]
    tamper(Tampering(finished))
    report = audit(finished, kit.row_check)
    checks = {check.name: check for check in report.checks}
    assert checks[check_name].failed, {check.name: check.problems for check in report.checks if check.failed}
    problem = checks[check_name].problems[0]
    assert problem.object
    assert problem.expected
    assert problem.got
    assert not report.trainable
    assert report.reason.startswith("not trainable: ")
    assert check_name in report.reason


def test_clean_job_is_trainable(
    store: ObjectStore, tmp_path: Path, prompts: Callable[..., Path], kit: Any
) -> None:
    """Nothing is wrong with what we wrote ourselves; everything was looked at; the line says so."""
    kit.run_job(store, kit.job_spec(tmp_path, str(prompts())))
    report = audit(store, kit.row_check)
    assert [check.name for check in report.checks if check.failed] == []
    assert all(check.checked for check in report.checks)
    assert report.trainable
    assert report.orphans == ()
    assert report.reason.startswith("trainable: ")
    value = orjson.loads(orjson.dumps(report.as_json()))
    keys = "batches checks job_id notices orphans reason repair rows scored store trainable"
    assert sorted(value) == keys.split()
    assert value["rows"]["total"] == 25


def test_unfinished_job(tmp_path: Path, prompts: Callable[..., Path], kit: Any) -> None:
    """What is committed of an incomplete job may be trained on; an empty one may not."""
    spec = kit.job_spec(tmp_path, str(prompts()))
    store = open_store(spec.store, spec.job_id)
    kit.run_job(store, spec, batches=0)
    assert audit(store, kit.row_check).reason == "not trainable: no accepted row is committed"
    kit.run_job(store, spec, batches=2)
    assert "of 2 of 3 batches" in audit(store, kit.row_check).reason


def test_orphans_are_listed_not_blamed(finished: ObjectStore, kit: Any) -> None:
    """A file that no receipt lists is named; it does no harm."""
    finished.put("shards/" + "a" * 64 + ".parquet", b"lost a race")
    report = audit(finished, kit.row_check)
    assert report.orphans == ("shards/" + "a" * 64 + ".parquet",)
    assert report.trainable


def test_superseded_generations_are_no_orphans(finished: ObjectStore, kit: Any) -> None:
    """The files of an earlier generation belong to its receipt."""
    job_id = orjson.loads(finished.get("job.json"))["job_id"]
    ledger = Ledger(finished, job_id)
    old = ledger.receipt(1, 0)
    tamper = Tampering(finished)
    finished.put("receipts/000001.g1.json", canonical(old.as_json() | {"generation": 1}))
    tamper.forge(lambda rows: rows[0].update(rid="again"), "provenance", "receipts/000001.g1.json")
    report = audit(finished, kit.row_check)
    assert report.orphans == ()
    assert report.trainable, report.reason


def test_nothing_there(tmp_path: Path) -> None:
    """An empty prefix is not trainable, and the audit says what is missing."""
    report = audit(open_store(StoreSpec(uri=str(tmp_path))))
    assert not report.trainable
    assert "job (1)" in report.reason


def test_a_verdict_of_an_earlier_rule_is_told_and_no_problem(finished: ObjectStore, kit: Any) -> None:
    """What an earlier version stored by its rules stays good; what neither rule says is found as before."""

    def today(inputs: Ragged, outputs: Ragged, completions: Sequence[Completion]) -> list[Verdict]:
        verdicts = kit.row_check(inputs, outputs, completions)
        return [attrs.evolve(verdict, code="complete", offset=-1) for verdict in verdicts]

    rejected = audit(finished, kit.row_check).rows["by_verdict"]["repetition"]
    assert not audit(finished, today).trainable
    report = audit(finished, today, earlier=(kit.row_check,))
    assert report.trainable, report.reason
    told = (
        f"grammar: {rejected} rows are stored as repetition, by a rule of an earlier version; today: complete"
    )
    assert report.notices == (told,)
    Tampering(finished).forge(lambda rows: rows[0].update(verdict="complete_tools"))
    assert "grammar" in audit(finished, today, earlier=(kit.row_check,)).reason
