"""Sources with weights: fair prefixes, growth behind what is planned, and reading any batch again."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.errors import JobError, SourceError
from tasks.job.spec import JobSpec, PromptsSpec
from tasks.ledger.batch import Batch, Span
from tasks.ledger.ledger import Ledger, Plan
from tasks.prompts.interleave import interleaving, merged
from tasks.prompts.opening import open_sources
from tasks.prompts.plan_batches import extend_plan
from tasks.prompts.record import Record
from tasks.prompts.sources import Sources
from tasks.store.opening import open_store


def grow(spec: JobSpec) -> tuple[Plan, Sources]:
    """Extend a job's plan as a new run does, and return it with that run's sources."""
    opened = open_sources(spec.prompts)
    return extend_plan(Ledger(open_store(spec.store, spec.job_id), spec.job_id), opened, spec, "r"), opened


def records(plan: Plan, opened: Sources) -> list[Record]:
    """Read every batch, last first, each by its own spans; return the records in plan order."""
    batches = {batch.index: opened.read(batch) for batch in reversed(plan.batches)}
    return [record for index in sorted(batches) for record in batches[index]]


def assert_fair(names: list[str], shares: dict[str, float], slack: float) -> None:
    """Every prefix holds each source's share to within `slack` records."""
    seen: Counter[str] = Counter()
    for length, name in enumerate(names, 1):
        seen[name] += 1
        for source, share in shares.items():
            assert abs(seen[source] - share * length) <= slack, (length, dict(seen))


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=6))
def test_merged_is_fair(weights: list[float]) -> None:
    """While no stream ends, any prefix has each stream's share to within a record per stream."""
    streams = [iter([index] * 400) for index in range(len(weights))]
    whole = sum(weights)
    found = [item for item, _ in zip(merged(streams, weights, [0] * len(weights)), range(300), strict=False)]
    counts: Counter[int] = Counter()
    for length, item in enumerate(found, 1):
        counts[item] += 1
        for index, weight in enumerate(weights):
            assert abs(counts[index] - length * weight / whole) <= len(weights)


@given(st.lists(st.integers(0, 60), min_size=1, max_size=5), st.integers(0, 2**63), st.integers(0, 10**6))
def test_interleaving_is_an_even_permutation(counts: list[int], seed: int, batch: int) -> None:
    """The order takes each span's records once, spread evenly, and is the same every time."""
    order = interleaving(counts, seed, batch)
    assert Counter(order) == Counter({span: count for span, count in enumerate(counts) if count})
    assert order == interleaving(counts, seed, batch)
    assert_fair(
        [str(span) for span in order],
        {str(span): count / sum(counts) for span, count in enumerate(counts) if count},
        len(counts) + 1,
    )


def test_interleaving_never_changes() -> None:
    """The order belongs to the stored format: these values stand in plans."""
    assert "".join(map(str, interleaving([6, 3, 1], 0, 0))) == "1200010010"
    assert "".join(map(str, interleaving([5, 5], 7, 3))) == "0101010110"


@pytest.fixture
def mixed(tmp_path: Path, prompts: Callable[..., Path], kit: Any) -> Callable[..., JobSpec]:
    """Return a job over a (60 records, weight 3) and b (40 records, weight 1)."""
    prompts("a.jsonl", 60)
    prompts("b.jsonl", 40, 1000)

    def make(*more: Any, weights: tuple[float, float] = (3, 1), **section: Any) -> JobSpec:
        a, b = (
            {"uri": str(tmp_path / f"{name}.jsonl"), "weight": weight}
            for name, weight in zip("ab", weights, strict=True)
        )
        return kit.job_spec(tmp_path, prompts={"sources": [a, b, *more], **section})  # type: ignore[no-any-return]

    return make


def test_any_prefix_is_a_fair_mixture(mixed: Callable[..., JobSpec]) -> None:
    """Three of four records are a's until a ends; then b goes on; every record comes once."""
    plan, opened = grow(mixed())
    found = records(plan, opened)
    names = [record.source for record in found]
    assert_fair(names[:76], {"a": 0.75, "b": 0.25}, 2)
    assert names[-20:] == ["b"] * 20
    assert [r.record_id for r in found if r.source == "a"] == [f"q{n}" for n in range(60)]
    assert [r.record_id for r in found if r.source == "b"] == [f"q{n}" for n in range(1000, 1040)]
    assert names[:10] != sorted(names[:10])


def test_mixtures_are_planned_alike_everywhere(mixed: Callable[..., JobSpec], tmp_path: Path) -> None:
    """Two stores get byte-equal plans; another seed gives other orders; one span a source is stored."""
    plans = []
    for number, seed in enumerate((0, 0, 5)):
        spec = mixed()
        spec = JobSpec(
            **{
                **spec.model_dump(),
                "sampling": {"seed": seed},
                "store": {"uri": str(tmp_path / f"store-{number}")},
            }
        )
        plan, _ = grow(spec)
        plans.append(plan)
        assert all(len(batch.spans) <= 2 for batch in plan.batches)
        assert {batch.seed for batch in plan.batches[:7]} == {seed}
        assert plan.batches[-1].seed is None  # one span has one order
    assert plans[0].batches == plans[1].batches
    assert plans[0].batches[0].fingerprint != plans[2].batches[0].fingerprint


def test_raising_the_limit_keeps_the_mixture(mixed: Callable[..., JobSpec]) -> None:
    """A pilot's batches stay, and what comes behind them is what one plan of all would have had there."""
    pilot, _ = grow(mixed(limit=13))
    grown, opened = grow(mixed(limit=50))
    assert grown.batches[: len(pilot.batches)] == pilot.batches
    assert grown.records == 50
    names = [record.source for record in records(grown, opened)]
    assert_fair(names, {"a": 0.75, "b": 0.25}, 2.5)
    assert grow(mixed(limit=50))[0] == grown


@pytest.mark.parametrize("weights", [(3, 1), (1, 8)], ids=["as-before", "other-weights"])
def test_a_source_that_is_added_joins_at_the_front(
    mixed: Callable[..., JobSpec], tmp_path: Path, prompts: Callable[..., Path], weights: tuple[float, float]
) -> None:
    """What is added is a fair mixture by itself: a new source neither catches up first nor waits."""
    before, _ = grow(mixed(limit=20))
    more = {"uri": str(prompts("c.jsonl", 40, 5000)), "weight": 4, "name": "extra"}
    plan, opened = grow(mixed(more, limit=50, weights=weights))
    assert plan.batches[:2] == before.batches
    names = [record.source for record in records(plan, opened)][20:]
    whole = sum(weights) + 4
    assert_fair(names, {"a": weights[0] / whole, "b": weights[1] / whole, "extra": 4 / whole}, 3)


def test_weights_given_later_change_nothing_planned(
    mixed: Callable[..., JobSpec], tmp_path: Path, kit: Any
) -> None:
    """A plan made file by file stays; what is behind it is mixed."""
    plain = kit.job_spec(tmp_path, *(str(tmp_path / f"{name}.jsonl") for name in "ab"), prompts={"limit": 30})
    before, _ = grow(plain)
    assert [span.source for batch in before.batches for span in batch.spans] == ["a"] * 3
    plan, opened = grow(mixed())
    assert plan.batches[:3] == before.batches
    assert plan.records == 100
    assert_fair([record.source for record in records(plan, opened)][30:68], {"a": 0.75, "b": 0.25}, 2.5)


def test_without_weights_the_plan_is_the_old_one(
    tmp_path: Path, prompts: Callable[..., Path], kit: Any
) -> None:
    """Strings, and long forms without weight, give the plan object that they always gave, byte for byte."""
    paths = [str(prompts("a.jsonl", 12)), str(prompts("b.jsonl", 5, 50))]
    spec = kit.job_spec(tmp_path, *paths)
    store = open_store(spec.store, spec.job_id)
    plan, _ = grow(spec)
    stored = orjson.loads(store.get("plan/000000.json"))
    assert set(stored) == {"schema", "job_id", "sequence", "first_batch", "sources", "batches"}
    assert all(set(item) == {"index", "start", "stop", "fingerprint", "spans"} for item in stored["batches"])
    assert [[span[:4] for span in item["spans"]] for item in stored["batches"]] == [
        [["a", 1, 10, 0]],
        [["a", 11, 2, plan.batches[1].spans[0].offset], ["b", 1, 5, 0]],
    ]
    long = kit.job_spec(tmp_path, prompts={"sources": [{"uri": path} for path in paths]})
    assert long.job_id == spec.job_id
    assert grow(long)[0] == plan


def test_a_folder_shares_one_weight(tmp_path: Path, prompts: Callable[..., Path], kit: Any) -> None:
    """The files of one source come one behind the other at the source's pace, under its name."""
    for number in range(3):
        prompts(f"many/part{number}.jsonl", 5, 10 * number)
    alone = {"uri": str(prompts("alone.jsonl", 15, 900)), "weight": 1}
    many = {"uri": str(tmp_path / "many"), "weight": 1, "name": "m"}
    plan, opened = grow(kit.job_spec(tmp_path, prompts={"sources": [many, alone]}))
    names = [record.source for record in records(plan, opened)]
    assert sorted(set(names)) == ["alone", "m-part0", "m-part1", "m-part2"]
    assert_fair([name.split("-")[0] for name in names], {"m": 0.5, "alone": 0.5}, 2)


def test_names(tmp_path: Path, prompts: Callable[..., Path], kit: Any) -> None:
    """A given name is the first part of row ids; a planned name stays; a taken one is refused."""
    a, b, c = (str(prompts(f"{name}.jsonl", 3, ord(name))) for name in "abc")
    plan, _ = grow(kit.job_spec(tmp_path, prompts={"sources": [{"uri": a, "name": "chat"}]}))
    assert plan.sources == (("chat", a),)
    plan, _ = grow(kit.job_spec(tmp_path, prompts={"sources": [{"uri": a, "name": "other"}, b]}))
    assert dict(plan.sources) == {"chat": a, "b": b}
    with pytest.raises(JobError, match=r"prompts\.sources\[1\]\.name: expected a name .*got 'chat' again"):
        grow(kit.job_spec(tmp_path, prompts={"sources": [a, {"uri": c, "name": "chat"}, b]}))


def test_a_named_source_may_move(tmp_path: Path, prompts: Callable[..., Path], kit: Any) -> None:
    """A source whose file has another name and place now is known by the name that the job gives it."""
    first = prompts("a.jsonl", 12)
    grow(kit.job_spec(tmp_path, prompts={"sources": [{"uri": str(first), "name": "chat"}], "limit": 10}))
    moved = first.rename(tmp_path / "moved.jsonl")
    plan, opened = grow(kit.job_spec(tmp_path, prompts={"sources": [{"uri": str(moved), "name": "chat"}]}))
    assert [record.name for record in records(plan, opened)] == [f"chat:q{n}" for n in range(12)]


def test_a_changed_order_is_noticed(mixed: Callable[..., JobSpec]) -> None:
    """A batch read under another seed or batch number is not what was planned."""
    plan, opened = grow(mixed())
    first = plan.batches[0]
    changed = Batch(first.index, first.start, first.stop, first.fingerprint, first.spans, 9)
    with pytest.raises(SourceError, match=r"batch 0 .*expected the records that were planned"):
        opened.read(changed)


def test_a_preview_is_mixed_too(mixed: Callable[..., JobSpec]) -> None:
    """Scanning without a plan takes sources by their weights."""
    names = [record.source for record, _ in open_sources(mixed().prompts).scan()]
    assert_fair(names[:76], {"a": 0.75, "b": 0.25}, 1.5)


def test_empty_sources_are_named_in_mixtures(tmp_path: Path, kit: Any, prompts: Callable[..., Path]) -> None:
    """An empty file in a mixture is an error before anything is planned."""
    (tmp_path / "empty.jsonl").write_text("")
    some = {"uri": str(prompts("a.jsonl", 3)), "weight": 1}
    with pytest.raises(SourceError, match=r"empty\.jsonl: expected prompt records"):
        grow(kit.job_spec(tmp_path, prompts={"sources": [some, str(tmp_path / "empty.jsonl")]}))


def test_spans_stay_seekable(mixed: Callable[..., JobSpec]) -> None:
    """A later batch is read from where its spans begin, not from the start of the file."""
    plan, opened = grow(mixed())
    span = next(span for span in plan.batches[4].spans if span.source == "a")
    assert isinstance(span, Span)
    assert span.first_line > 20
    text = Path(opened.files and next(uri for uri, name in opened.names.items() if name == "a")).read_bytes()
    assert text[: span.offset].count(b"\n") == span.first_line - 1


def test_long_and_short_forms_agree() -> None:
    """A string is a source without weight and name."""
    assert PromptsSpec(sources=["x"]).parts == PromptsSpec(sources=[{"uri": "x"}]).parts
    assert not PromptsSpec(sources=["x", {"uri": "y", "name": "n"}]).seeded
    assert PromptsSpec(sources=["x", {"uri": "y", "weight": 1}]).seeded
