"""Which rows a retry keeps, and what becomes of a retry that another worker was faster with."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from tasks.ledger.plan import Batch
from tasks.rows.records import Completion, as_ids
from tasks.run.retry import Retry, kept_rows, rows_made, settled
from tasks.store.contract import canonical
from tasks.store.opening import open_store
from tests.support.small_jobs import job_spec, run_job

A, B, C = "s:a#t0~s0", "s:a#t1~s0", "s:b#t0~s0"


def row(row_id: str) -> Completion:
    """Return a made-up finished row."""
    return Completion(row_id, as_ids([1]), as_ids([2]), "stop", 2)


@pytest.mark.parametrize(
    ("there", "codes", "kept"),
    [
        pytest.param({A: "complete", B: "complete", C: "complete"}, [], [A, B, C], id="all"),
        pytest.param({A: "complete", B: "nan", C: "complete"}, ["nan"], [A, C], id="by-code"),
        pytest.param({A: "nan", B: "complete", C: "complete"}, ["nan"], [C], id="and-turns-after-it"),
        pytest.param({B: "complete", C: "complete"}, [], [C], id="and-turns-after-a-lost-one"),
        pytest.param({A: "complete", C: "complete"}, [], [A, C], id="a-lost-last-turn"),
        pytest.param({}, [], [], id="nothing-left"),
    ],
)
def test_kept_rows(there: dict[str, str], codes: list[str], kept: list[str]) -> None:
    """A row stays unless it, or an earlier turn of its conversation, is made again."""
    rows = [(code, row(row_id)) for row_id, code in there.items()]
    assert [
        completion.row_id for completion in kept_rows(rows, lambda code, _: code in codes, [A, B, C])
    ] == kept


@pytest.mark.parametrize(
    ("codes", "damage", "after", "made"),
    [
        pytest.param({"nan"}, {}, {"complete": 8, "unreached": 2}, 2, id="those-of-the-code"),
        pytest.param({"nan"}, {}, {"complete": 10}, 4, id="and-turns-that-were-reached"),
        pytest.param({"unreached"}, {}, {"complete": 6, "nan": 2, "unreached": 2}, 0, id="none-is-sent"),
        pytest.param(set(), {"shard": "missing"}, {"complete": 10}, 10, id="at-most"),
    ],
)
def test_rows_that_another_run_made(
    codes: set[str], damage: dict[str, str], after: dict[str, int], made: int
) -> None:
    """Of a batch again, copied rows do not count as made."""
    before = {"complete": 6, "nan": 2, "unreached": 2}
    receipts: list[Any] = [
        SimpleNamespace(rows={"total": 10, "by_verdict": each}) for each in (before, after)
    ]
    retry = Retry(Batch(0, 0, 10, "f", ()), 1, frozenset(codes), damage=damage)
    assert rows_made(*receipts, retry) == made


def test_a_retry_for_another_reason_is_not_taken_for_ours(tmp_path: Path) -> None:
    """When others made the generation: for the same reason it is done, for another one that is an error."""
    prompts = tmp_path / "p.jsonl"
    prompts.write_bytes(b"".join(canonical({"id": f"q{n}", "prompt": f"{n}?"}) + b"\n" for n in range(9)))
    spec = job_spec(tmp_path, str(prompts), batch={"rows": 3})
    ledger = run_job(open_store(spec.store, spec.job_id), spec)
    retries = [Retry(batch, 1, frozenset({"poison"})) for batch in ledger.plan().batches]
    for retry, reason in zip(retries, (retries[0].reason, "30 ids more"), strict=False):
        ledger.commit(attrs.evolve(ledger.receipt(retry.index, 0), generation=1, reason=reason))
    run: Any = SimpleNamespace(ledger=ledger)
    left, overtaken = settled(run, retries)
    assert left == (retries[2],)
    assert overtaken == [
        (
            1,
            "receipts/000001.g1.json: expected to make it for 'again: poison', got one that is made for "
            "'30 ids more' meanwhile: run the same command again",
        )
    ]
