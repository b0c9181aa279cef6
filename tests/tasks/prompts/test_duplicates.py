"""Duplicates and exclusions: planned, rejected with their code, and named."""

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.errors import DataError, SourceError
from tasks.job.spec import JobSpec
from tasks.ledger.batch import Batch
from tasks.ledger.ledger import Ledger, Plan
from tasks.ledger.plan import extended, plan_object, portions
from tasks.prompts.duplicates import opening_keys, prompt_key
from tasks.prompts.opening import open_sources
from tasks.prompts.plan_batches import extend_plan
from tasks.prompts.record import Record, read_json_record
from tasks.prompts.sources import Sources
from tasks.rows import repeats as duplicates
from tasks.rows.repeats import HashSpill, PromptSpill
from tasks.rows.verdicts import Code
from tasks.store.opening import open_store
from tasks.turns.conversations import plan_conversations

USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello"}


def write(path: Path, *rows: Any) -> Path:
    """Write JSON lines; a string is a prompt."""
    items = [{"prompt": row} if isinstance(row, str) else row for row in rows]
    path.write_bytes(b"".join(orjson.dumps(item) + b"\n" for item in items))
    return path


def grow(spec: JobSpec) -> tuple[Plan, Sources]:
    """Extend a job's plan as a new run does, and return it with that run's sources."""
    opened = open_sources(spec.prompts)
    return extend_plan(Ledger(open_store(spec.store, spec.job_id), spec.job_id), opened, spec, "r"), opened


def dropped(plan: Plan) -> list[tuple[str, int, str, str]]:
    """Return what the plan drops."""
    return [(d.source, d.line, d.cause, d.first) for batch in plan.batches for d in batch.drops]


def read(data: Any) -> Record:
    """Read one record."""
    return read_json_record(orjson.dumps(data), "src", "file.jsonl", 1, {})


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"prompt": "Hi"}, {"messages": [USER], "id": 9, "topic": "x"}, True),
        ({"prompt": "Hi"}, {"messages": [{"content": "Hi", "name": None, "role": "user"}]}, True),
        ({"prompt": "Hi"}, {"conversations": [{"from": "human", "value": "Hi"}]}, True),
        ({"prompt": "Hi"}, {"messages": [USER, ANSWER]}, True),
        ({"messages": [USER, ANSWER, USER]}, {"turns": ["Hi", "Hi"]}, False),
        ({"messages": [USER, ANSWER, ANSWER]}, {"messages": [USER, ANSWER]}, False),
        ({"prompt": "Hi"}, {"prompt": "Hi "}, False),
        ({"prompt": "Hi"}, {"prompt": "hi"}, False),
        ({"prompt": "Hi"}, {"prompt": "Hi", "tools": [{"name": "f"}]}, False),
        ({"prompt": "Hi", "tools": '[{"a":1,"b":2}]'}, {"prompt": "Hi", "tools": [{"b": 2, "a": 1}]}, True),
        ({"prompt": "Hi"}, {"messages": [{"role": "system", "content": ""}, USER]}, False),
    ],
    ids=[
        "shapes", "nulls", "sharegpt", "last-answer", "inner-answer", "second-answer", "blank", "case",
        "tools", "tools-as-text", "system",
    ],
)  # fmt: skip
def test_sameness(one: Any, other: Any, same: bool) -> None:
    """Same messages and tools are one prompt, whatever shape, ids and last recorded answer."""
    assert (prompt_key(read(one)) == prompt_key(read(other))) is same


@pytest.mark.parametrize(
    ("record", "excluded", "out"),
    [
        ({"prompt": "What  is\n2+2? "}, {"prompt": "what is 2+2?"}, True),
        ({"turns": ["a", "b"]}, {"prompt": "A"}, True),
        ({"turns": ["a", "b"]}, {"turns": ["A", "B"]}, True),
        ({"prompt": "a"}, {"turns": ["a", "b"]}, False),
        ({"turns": ["x", "a"]}, {"prompt": "a"}, False),
        ({"prompt": "a b"}, {"turns": ["a", "b"]}, False),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "A"}]}]}, {"prompt": "a"}, True),
        ({"prompt": "STRASSE"}, {"prompt": "straße"}, True),
        ({"messages": [{"role": "system", "content": "s"}, USER, ANSWER]}, {"prompt": "hi"}, True),
    ],
    ids=["case-blank", "opening", "all", "longer", "later", "border", "parts", "casefold", "system"],
)
def test_exclusion_keys(record: Any, excluded: Any, out: bool) -> None:
    """A record is excluded when it begins with the user messages of an excluded prompt."""
    *_, key = opening_keys(read(excluded))
    assert (key in set(opening_keys(read(record)))) is out


@pytest.fixture
def three(tmp_path: Path) -> tuple[Path, Path]:
    """Two files with repeats within and across them."""
    first = write(tmp_path / "a.jsonl", "one", "two", {"id": "x", "prompt": "one"}, "three")
    return first, write(tmp_path / "b.jsonl", "four", {"id": "y", "turns": ["two"]}, "five", "one")


def test_duplicates_are_rejected_rows(tmp_path: Path, three: tuple[Path, Path], kit: Any) -> None:
    """A repeat stays in the plan, and each of its rows is a duplicate that names the first record."""
    spec = kit.job_spec(tmp_path, *map(str, three), batch={"rows": 3}, sampling={"samples": 2})
    plan, opened = grow(spec)
    assert plan.records == 8
    assert dropped(plan) == [
        ("a", 3, "duplicate", "a:1"),
        ("b", 2, "duplicate", "a:2"),
        ("b", 4, "duplicate", "a:1"),
    ]
    records = [record for batch in plan.batches for record in opened.read(batch)]
    assert [bool(record.error) for record in records] == [False, False, True, False, False, True, False, True]
    assert records[2].error == (
        f"{three[0]}:3: expected a prompt that no earlier record has, got the messages and tools of a:1 again"
    )
    rows = plan_conversations(records, "each", 2)
    assert len(rows) == 16
    assert [row.code for row in rows if row.error] == [Code.DUPLICATE] * 6
    again, _ = grow(spec)
    assert again == plan


def test_duplicates_can_be_kept(tmp_path: Path, three: tuple[Path, Path], kit: Any) -> None:
    """With `keep` nothing is dropped, and the job's id is the same: it is decided when planned, for good."""
    spec = kit.job_spec(tmp_path, *map(str, three), prompts={"duplicates": "keep", "limit": 3})
    plan, _ = grow(spec)
    assert dropped(plan) == []
    default = kit.job_spec(tmp_path, *map(str, three))
    assert default.job_id == spec.job_id
    grown, _ = grow(default)
    assert grown.batches[0] == plan.batches[0]
    assert dropped(grown) == [("b", 2, "duplicate", "a:2"), ("b", 4, "duplicate", "a:1")]


def test_the_first_is_one_that_is_generated(tmp_path: Path, kit: Any) -> None:
    """Growth finds repeats of planned records, and never names one that is itself dropped."""
    a = write(tmp_path / "a.jsonl", "one", "one", "two")
    plan, _ = grow(kit.job_spec(tmp_path, str(a)))
    assert dropped(plan) == [("a", 2, "duplicate", "a:1")]
    b = write(tmp_path / "b.jsonl", "one", "two", "three", "three")
    grown, opened = grow(kit.job_spec(tmp_path, str(b), str(a)))
    assert grown.batches[0] == plan.batches[0]
    assert dropped(grown)[1:] == [
        ("b", 1, "duplicate", "a:1"),
        ("b", 2, "duplicate", "a:3"),
        ("b", 4, "duplicate", "b:3"),
    ]
    assert [bool(record.error) for record in opened.read(grown.batches[1])] == [True, True, False, True]


def test_duplicates_in_a_mixture(tmp_path: Path, kit: Any) -> None:
    """With weights the first in plan order stays, and all others name it."""
    sources = [
        {"uri": str(write(tmp_path / f"{name}.jsonl", *(f"p{n}" for n in range(30)))), "weight": weight}
        for name, weight in (("a", 1), ("b", 2))
    ]
    plan, opened = grow(kit.job_spec(tmp_path, prompts={"sources": sources}))
    records = [record for batch in plan.batches for record in opened.read(batch)]
    good: dict[bytes, str] = {}
    for record in records:
        key = prompt_key(record)
        if record.error:
            assert f"of {good[key]} again" in record.error
        else:
            assert key not in good
            good[key] = record.name
    assert (len(records), len(good)) == (60, 30)


def test_a_repeat_in_parquet(tmp_path: Path, kit: Any) -> None:
    """A prompt is the same in another format."""
    pq.write_table(pa.table({"id": ["p"], "prompt": ["one"]}), tmp_path / "t.parquet")
    spec = kit.job_spec(tmp_path, str(write(tmp_path / "a.jsonl", "one")), str(tmp_path / "t.parquet"))
    assert dropped(grow(spec)[0]) == [("t", 1, "duplicate", "a:1")]


def test_malformed_records_are_no_duplicates(tmp_path: Path, kit: Any) -> None:
    """Two equal malformed records are two bad records."""
    path = tmp_path / "bad.jsonl"
    path.write_text('nonsense\nnonsense\n{"prompt":"a"}\n')
    plan, opened = grow(kit.job_spec(tmp_path, str(path), prompts={"on_bad_row": "reject"}))
    assert dropped(plan) == []
    codes = [(record.code, bool(record.error)) for record in opened.read(plan.batches[0])]
    assert codes[:2] == [(Code.BAD_RECORD, True)] * 2


def test_exclusions_are_rejected_rows(tmp_path: Path, kit: Any) -> None:
    """Records of an evaluation set are planned, rejected as duplicates, and name its file and line."""
    prompts = write(tmp_path / "a.jsonl", "Fine", "what is  LOVE?", {"turns": ["Question?", "More"]}, "other")
    (tmp_path / "eval").mkdir()
    first = write(tmp_path / "eval" / "one.jsonl", "unknown", "What is love?")
    second = write(tmp_path / "two.jsonl", {"turns": ["question?"]})
    exclude = [str(first.parent), str(second)]
    plan, opened = grow(kit.job_spec(tmp_path, str(prompts), prompts={"exclude": exclude}))
    assert dropped(plan) == [("a", 2, "excluded", f"{first}:2"), ("a", 3, "excluded", f"{second}:1")]
    records = opened.read(plan.batches[0])
    assert [(record.code, bool(record.error)) for record in records[:2]] == [
        (Code.BAD_RECORD, False),
        (Code.DUPLICATE, True),
    ]
    assert records[1].error.endswith(f"prompts.exclude does not have, got the user messages of {first}:2")
    assert len(plan_conversations(records, "each", 1)[2].row_ids) == 2
    assert plan.exclude == frozenset(exclude)


def test_exclusions_with_other_columns(tmp_path: Path, kit: Any) -> None:
    """An exclusion file may have our column names, or those that prompts.fields maps."""
    options = {"fields": {"prompt": "question"}}
    prompts = write(tmp_path / "a.jsonl", *({"question": text} for text in ("one", "two", "three")))
    ours = write(tmp_path / "ours.jsonl", "one")
    theirs = write(tmp_path / "theirs.jsonl", {"question": "Two"})
    exclude = [str(ours), str(theirs)]
    plan, _ = grow(kit.job_spec(tmp_path, str(prompts), prompts={**options, "exclude": exclude}))
    assert [line for _, line, _, _ in dropped(plan)] == [1, 2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text":"x"}\n', r"prompts\.exclude: .*bad\.jsonl:1: missing field"),
        ("", r"prompts\.exclude: .*bad\.jsonl: expected prompt records, got an empty file"),
        (None, r"prompts\.exclude\[0\]: expected a file, a folder or a glob, found nothing"),
    ],
    ids=["malformed", "empty", "absent"],
)
def test_exclusions_that_cannot_be_read(tmp_path: Path, kit: Any, content: str | None, message: str) -> None:
    """What cannot be read would not be excluded: nothing is planned."""
    bad = tmp_path / "bad.jsonl"
    if content is not None:
        bad.write_text(content)
    spec = kit.job_spec(
        tmp_path,
        str(write(tmp_path / "a.jsonl", "x")),
        prompts={"exclude": [str(bad)], "on_bad_row": "reject"},
    )
    with pytest.raises(SourceError, match=message):
        grow(spec)


def test_late_exclusions_say_so(tmp_path: Path, kit: Any) -> None:
    """What is planned stays planned: a run whose exclusions came later is told."""
    prompts, exam = write(tmp_path / "a.jsonl", "one", "two"), write(tmp_path / "exam.jsonl", "one", "three")
    grow(kit.job_spec(tmp_path, str(prompts)))
    write(prompts, "one", "two", "three")
    late = kit.job_spec(tmp_path, str(prompts), prompts={"exclude": [str(exam)]})
    plan, _ = grow(late)
    assert dropped(plan) == [("a", 3, "excluded", f"{exam}:2")]
    assert "exam.jsonl came after records were planned" in "".join(plan.notices)


def test_gone_sources_say_so(tmp_path: Path, kit: Any) -> None:
    """Records of planned files that are gone cannot be compared: the run is told which."""
    gone, left = write(tmp_path / "gone.jsonl", "one"), write(tmp_path / "left.jsonl", "one")
    grow(kit.job_spec(tmp_path, str(gone)))
    plan, _ = grow(kit.job_spec(tmp_path, str(left)))
    assert dropped(plan) == []
    assert any("not searched for duplicates of new records: gone" in notice for notice in plan.notices)


def test_what_is_dropped_is_sealed(tmp_path: Path, three: tuple[Path, Path], kit: Any) -> None:
    """A plan whose drops were changed is not read; one with an unknown cause is refused."""
    spec = kit.job_spec(tmp_path, *map(str, three))
    plan, opened = grow(spec)
    data = orjson.loads(orjson.dumps(plan_object(spec.job_id, 0, plan.sources, plan.batches)))
    assert extended(Plan(spec.job_id), data, "plan").batches == plan.batches
    del data["batches"][0]["dropped"][0]
    changed = extended(Plan(spec.job_id), data, "plan")
    with pytest.raises(SourceError, match="expected the records that were planned"):
        opened.read(changed.batches[0])
    data["batches"][0]["dropped"][0][2] = "dull"
    with pytest.raises(DataError, match=r"expected causes duplicate, excluded in batch 0, got dull"):
        extended(Plan(spec.job_id), data, "plan")


def test_plan_objects_stay_small() -> None:
    """An object ends at 1,000 batches, or once it names 2 MiB of dropped records."""
    plain = [Batch(n, n, n + 1, "", ()) for n in range(1_001)]
    assert [len(part) for part in portions(plain)] == [1_000, 1]
    heavy = [Batch(n, n, n + 1, "", (), None, b"x" * 2**20) for n in range(5)]
    assert [len(part) for part in portions(heavy)] == [2, 2, 1]
    assert list(portions([])) == []


@pytest.mark.process
def test_many_repeats_in_little_memory(tmp_path: Path) -> None:
    """Half a million prompts, most of them twice, are compared in a few dozen megabytes."""
    script = """
import resource, sys
from tasks.rows.repeats import PromptSpill
from tasks.prompts.record import Record
import hashlib
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
record = Record("source", "id", 1, (), None, "{}", "", "")
before = peak()
with PromptSpill() as spill:
    for number in range(500_000):
        spill.add(hashlib.blake2b(str(number // 2).encode(), digest_size=16).digest(), number, record)
    found = sum(1 for _ in spill.repeats())
print(found, peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    found, megabytes = done.stdout.split()
    assert int(found) == 250_000
    assert float(megabytes) < 40


def test_first_of_many() -> None:
    """Every repeat names the lowest number, in whatever order they were noted."""
    record = read({"id": "r", "prompt": "x"})
    with PromptSpill() as spill:
        for number in (5, 2, 9, 7):
            spill.add(b"k" * 16, number, record)
        spill.add(b"k" * 15 + b"l", 1, record)
        assert sorted(repeat.number for repeat in spill.repeats()) == [5, 7, 9]


def test_repeats_in_files_of_many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small the parts are in which a file is compared, equal keys meet in one."""
    monkeypatch.setattr(duplicates, "_PART_BYTES", 1024)
    monkeypatch.setattr(duplicates, "_BUFFERED", 2**14)
    record = read({"id": "r", "prompt": "x"})
    with PromptSpill() as prompts, HashSpill() as ids:
        for number in range(30_000):
            key = hashlib.blake2b(str(number % 20_000).encode(), digest_size=16).digest()
            prompts.add(key, number, record)
            ids.add(int.from_bytes(key[:8], "little"))
        assert sorted(repeat.number for repeat in prompts.repeats()) == list(range(20_000, 30_000))
        assert len(ids.repeated()) == 10_000


def test_through_whole_jobs(tmp_path: Path, prompts: Callable[..., Path], kit: Any) -> None:
    """A committed job with repeats has a row for every record."""
    prompts("a.jsonl", 15)
    prompts("b.jsonl", 15)
    spec = kit.job_spec(tmp_path, str(tmp_path / "?.jsonl"))
    store = open_store(spec.store, spec.job_id)
    ledger = kit.run_job(store, spec)
    assert ledger.plan().records == 30
    assert len(dropped(ledger.plan())) == 15
    assert sum(receipt.rows["total"] for receipt in ledger.receipts().values()) == 30
