"""The ledger: planned once, committed once, the same truth for every run, worker and machine."""

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest

from tasks.errors import DataError, IdentityError
from tasks.job.spec import JobSpec
from tasks.ledger.ledger import Ledger, Plan
from tasks.ledger.plan import plan_object
from tasks.prompts.files import stamp_of
from tasks.prompts.opening import open_sources
from tasks.prompts.plan_batches import extend_plan
from tasks.store.contract import MissingError, ObjectStore, canonical, sha256_hex

Prompts = Callable[..., Path]


def extend(store: ObjectStore, spec: JobSpec) -> Plan:
    """Plan what is new in the job's sources."""
    return extend_plan(Ledger(store, spec.job_id), open_sources(spec.prompts), spec, "r")


def test_whole_job(store: ObjectStore, tmp_path: Path, prompts: Prompts, kit: Any) -> None:
    """25 records in batches of 10: every row once, totals add up, a second run does nothing."""
    spec = kit.job_spec(tmp_path, str(prompts()))
    ledger = kit.run_job(store, spec, batches=2)
    assert [batch.index for batch in ledger.pending(ledger.plan())] == [2]
    ledger = kit.run_job(store, spec)
    assert not ledger.pending(ledger.plan())
    totals = ledger.fold(ledger.receipts())
    assert totals.batches == 3
    assert totals.rows["total"] == 25 == totals.rows["accepted"] + totals.rows["rejected"]
    assert ledger.fold(ledger.iter_receipts()).tokens == totals.tokens
    objects = [(info.key, info.size) for info in store.list("")]
    kit.run_job(store, spec)
    assert [(info.key, info.size) for info in store.list("")] == objects


def test_plan_objects(store: ObjectStore, tmp_path: Path, prompts: Prompts, kit: Any) -> None:
    """The plan is as the schema page says, and the same for whoever reads it."""
    first, second = prompts("a.jsonl", 15), prompts("b.jsonl", 3)
    spec = kit.job_spec(tmp_path, str(first), str(second))
    plan = extend(store, spec)
    data = orjson.loads(store.get("plan/000000.json"))
    assert [source.pop("stamp") for source in data["sources"]] == [stamp_of(first), stamp_of(second)]
    assert data["sources"] == [{"name": "a", "uri": str(first)}, {"name": "b", "uri": str(second)}]
    assert data["batches"][1]["spans"][0][:3] == ["a", 11, 5]
    assert data["batches"][1]["spans"][1][:4] == ["b", 1, 3, 0]
    assert len(data["batches"][1]["spans"][1][4]) == 64  # hex
    assert [(batch["start"], batch["stop"]) for batch in data["batches"]] == [(0, 10), (10, 18)]
    assert Ledger(store, spec.job_id).plan() == plan


def test_plan_only_grows(tmp_path: Path, prompts: Prompts, kit: Any, store: ObjectStore) -> None:
    """A pilot, a higher limit, a file that grew, a new source and another batch size all append."""
    path = prompts(rows=25)
    spec = kit.job_spec(tmp_path, str(path), prompts={"limit": 12})
    steps = [extend(store, spec)]
    spec = kit.job_spec(tmp_path, str(path), batch={"rows": 4})
    steps.append(extend(store, spec))
    with path.open("a") as file:
        file.write('{"id":"late","prompt":"x"}\n')
    steps.append(extend(store, spec))
    spec = kit.job_spec(tmp_path, str(prompts("more.jsonl", 2)), str(path))
    steps.append(extend(store, spec))
    steps.append(extend(store, spec))
    assert [plan.records for plan in steps] == [12, 25, 26, 28, 28]
    assert [batch.stop - batch.start for batch in steps[-1].batches] == [10, 2, 4, 4, 4, 1, 1, 2]
    for before, after in itertools.pairwise(steps):
        assert after.batches[: len(before.batches)] == before.batches
    read = [record.name for batch in steps[-1].batches for record in opened(spec, steps[-1]).read(batch)]
    assert len(set(read)) == len(read) == 28
    small = kit.job_spec(
        tmp_path, str(path), str(tmp_path / "more.jsonl"), prompts={"limit": 5}, batch={"rows": 7}
    )
    notices = extend(store, small).notices
    assert "prompts.limit is 5, but 28 records are planned" in notices[0]
    assert "batch.rows is 7" in notices[1]


def test_nothing_changed_nothing_noticed(
    tmp_path: Path, prompts: Prompts, kit: Any, store: ObjectStore
) -> None:
    """A job of one small batch says nothing about batch.rows when it is run again as it was."""
    spec = kit.job_spec(tmp_path, str(prompts(rows=6)), batch={"rows": 8})
    Ledger(store, spec.job_id).open_job(spec, kit.resolved)
    assert [extend(store, spec).notices for _ in range(2)] == [(), ()]
    other = kit.job_spec(tmp_path, str(tmp_path / "questions.jsonl"), batch={"rows": 9})
    assert "batch.rows is 9" in extend(store, other).notices[0]


def test_a_lost_plan_is_noticed(tmp_path: Path, prompts: Prompts, kit: Any, store: ObjectStore) -> None:
    """Planning anew could cut other batches than those that have receipts: what is missing is named."""
    spec = kit.job_spec(tmp_path, str(prompts(rows=12)), batch={"rows": 4})
    plan = extend(store, spec)
    store.put("receipts/000002.g0.json", b"{}")
    store.delete("plan/000000.json")
    for again in (
        lambda: extend(store, spec),
        lambda: Ledger(store, spec.job_id).plan_of([0, 2]),
    ):
        with pytest.raises(DataError, match=r"plan/000000\.json: expected the plan of batch"):
            again()
    assert plan.records == 12
    assert store.head("plan/000000.json") is None


def opened(spec: JobSpec, plan: Plan) -> Any:
    """Open a job's sources as the plan names them."""
    sources = open_sources(spec.prompts)
    sources.know(plan.sources)
    sources.seal = (spec.job_id, "r")
    return sources


def test_two_planners_agree(tmp_path: Path, prompts: Prompts, kit: Any, store: ObjectStore) -> None:
    """Four runs that plan at once end with one plan, whatever batch sizes they came with."""
    path = prompts(rows=40)
    plans: list[Plan] = []
    barrier = threading.Barrier(4)

    def plan(rows: int) -> None:
        spec = kit.job_spec(tmp_path, str(path), batch={"rows": rows})
        barrier.wait()
        plans.append(extend(store, spec))

    threads = [threading.Thread(target=plan, args=(rows,)) for rows in (7, 7, 9, 11)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(plans) == 4
    assert len({plan.batches for plan in plans}) == 1
    assert plans[0].records == 40


def test_large_plans_have_several_objects(
    tmp_path: Path, prompts: Prompts, kit: Any, monkeypatch: pytest.MonkeyPatch, store: ObjectStore
) -> None:
    """A plan object holds so many batches at most; the next one continues."""
    monkeypatch.setattr("tasks.ledger.plan.BATCHES_PER_OBJECT", 4)
    spec = kit.job_spec(tmp_path, str(prompts(rows=25)), batch={"rows": 2})
    plan = extend(store, spec)
    assert [info.key for info in store.list("plan/")] == [f"plan/{n:06d}.json" for n in range(4)]
    assert [batch.index for batch in plan.batches] == list(range(13))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "expected schema 1 to 1, got 2 .written by a newer rawseq"),
        ({"sequence": 1}, "expected job .* sequence 0"),
        ({"job_id": "other"}, "expected job trial-.* got other"),
        ({"batches": [{"index": 1}]}, "expected a plan object of schema 1"),
    ],
)
def test_odd_plans_are_refused(
    tmp_path: Path, prompts: Prompts, kit: Any, change: dict[str, Any], message: str, store: ObjectStore
) -> None:
    """A plan object that is not what its key says is refused by name."""
    spec = kit.job_spec(tmp_path, str(prompts()))
    plan = extend(store, spec)
    data = plan_object(spec.job_id, 0, plan.sources, plan.batches) | change
    store.put("plan/000000.json", canonical(data))
    with pytest.raises(DataError, match=rf"plan/000000\.json: {message}"):
        Ledger(store, spec.job_id).plan()


def test_job_that_resolves_otherwise(store: ObjectStore, tmp_path: Path, kit: Any) -> None:
    """job.json is created once; a run that resolves to other tokens sees both, path by path."""
    spec = kit.job_spec(tmp_path, "x.jsonl")
    ledger = Ledger(store, spec.job_id)
    with pytest.raises(MissingError):
        ledger.job()
    ledger.open_job(spec, kit.resolved)
    ledger.open_job(kit.job_spec(tmp_path, "y.jsonl", servers={"urls": ["http://other:1"]}), kit.resolved)
    assert ledger.job()["spec"]["prompts"]["sources"] == ["x.jsonl"]
    other = {"tokenizer": {"size": 1000, "template_sha256": "new"}, "end_ids": [1]}
    with pytest.raises(IdentityError) as caught:
        ledger.open_job(spec, other)
    text = str(caught.value)
    assert "resolved.tokenizer.template_sha256: stored 'template', now 'new'" in text
    assert "resolved.end_ids: stored absent, now [1]" in text
    assert "resolved.sampling: stored {'temperature': 0.7}, now absent" in text


def test_first_receipt_wins(store: ObjectStore, tmp_path: Path, prompts: Prompts, kit: Any) -> None:
    """Two workers finish one batch with other rows: one receipt counts, both learn which."""
    spec = kit.job_spec(tmp_path, str(prompts(rows=5)))
    ledger = Ledger(store, spec.job_id)
    sources = open_sources(spec.prompts)
    batch = extend_plan(ledger, sources, spec, "r").batches[0]
    answers = [kit.completion_of(record, n) for n, record in enumerate(sources.read(batch))]
    ours = kit.receipt_of(ledger, batch, kit.checked_batch(0, answers))
    theirs = kit.receipt_of(
        ledger, batch, kit.checked_batch(0, [kit.completion_of(r, 9) for r in sources.read(batch)])
    )
    assert ours.provenance != theirs.provenance
    assert ledger.commit(theirs).as_json() == theirs.as_json()
    assert ledger.commit(ours).as_json() == theirs.as_json()
    assert ledger.commit(theirs).as_json() == theirs.as_json()
    with pytest.raises(IdentityError, match=r"000000\.g0\.json: expected fingerprint 0000"):
        ledger.commit(attrs.evolve(ours, fingerprint="0" * 64))


def test_no_receipt_without_its_files(store: ObjectStore, tmp_path: Path, prompts: Prompts, kit: Any) -> None:
    """A receipt is not written while one of its files is missing or short."""
    spec = kit.job_spec(tmp_path, str(prompts(rows=5)))
    ledger = Ledger(store, spec.job_id)
    sources = open_sources(spec.prompts)
    batch = extend_plan(ledger, sources, spec, "r").batches[0]
    receipt = kit.receipt_of(
        ledger, batch, kit.checked_batch(0, [kit.completion_of(r, 0) for r in sources.read(batch)])
    )
    store.delete(receipt.shard.key)
    with pytest.raises(DataError, match=r"expected the shard file of batch 0 .* got None"):
        ledger.commit(receipt)
    assert store.head(receipt.key) is None


def test_the_highest_generation_counts(
    store: ObjectStore, tmp_path: Path, prompts: Prompts, kit: Any
) -> None:
    """A later generation of a batch replaces the earlier one in every view."""
    spec = kit.job_spec(tmp_path, str(prompts(rows=15)))
    ledger = kit.run_job(store, spec)
    again = attrs.evolve(ledger.receipt(1, 0), generation=1)
    ledger.commit(again)
    assert ledger.committed() == {0: 0, 1: 1}
    assert ledger.receipts()[1].as_json() == again.as_json()
    assert ledger.fold(ledger.receipts()).batches == 2


def test_receipt_is_canonical(store: ObjectStore, tmp_path: Path, prompts: Prompts, kit: Any) -> None:
    """A receipt's bytes are canonical JSON without times or hosts, with the documented keys."""
    ledger = kit.run_job(store, kit.job_spec(tmp_path, str(prompts(rows=5))))
    data = store.get("receipts/000000.g0.json")
    value = orjson.loads(data)
    assert data == canonical(value)
    assert ",".join(sorted(value)) == (
        "batch,fingerprint,frequencies,generation,job_id,provenance,rejected,resolved_sha256,rows,schema,shard,"
        "start,stop,template_sha256,tokens"
    )
    assert value["resolved_sha256"] == sha256_hex(canonical(kit.resolved))
    assert ledger.receipts()[0].as_json() == value
