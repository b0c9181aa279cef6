"""Prompt files over time: no row id is given twice, and no record is passed over in silence."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import SourceError
from tasks.job.spec import PromptsSpec
from tasks.ledger.ledger import Ledger
from tasks.ledger.plan import Plan
from tasks.prompts.opening import open_sources
from tasks.prompts.plan_batches import extend_plan
from tasks.prompts.planned import name_sources
from tasks.store.opening import open_store


class Nights:
    """A job over a folder of prompt files that is planned again every night."""

    def __init__(self, folder: Path, kit: Any) -> None:
        self.folder = folder / "prompts"
        self.folder.mkdir()
        self.spec = kit.job_spec(folder, str(self.folder))
        self.ledger = Ledger(open_store(self.spec.store, self.spec.job_id), self.spec.job_id)

    def write(self, name: str, *texts: str, mode: str = "w") -> Path:
        """Write or append records, one text each."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        with path.open(mode) as file:
            file.writelines(json.dumps({"prompt": text}) + "\n" for text in texts)
        return path

    def plan(self) -> Plan:
        """Plan what is new."""
        return extend_plan(self.ledger, open_sources(self.spec.prompts), self.spec, "r")

    def forget_digests(self) -> None:
        """Make the plan one of before its spans had digests."""
        for path in self.folder.parent.rglob("plan/*.json"):
            data = json.loads(path.read_bytes())
            for batch in data["batches"]:
                batch["spans"] = [span[:4] for span in batch["spans"]]
            for source in data["sources"]:
                del source["stamp"]
            path.write_text(json.dumps(data))

    def read(self, plan: Plan, **options: Any) -> dict[str, str]:
        """Return text by record name of all that can be read of the plan, every name once."""
        opened = open_sources(self.spec.prompts.model_copy(update=options))
        opened.seal = (self.spec.job_id, "r")
        name_sources(opened, plan)
        found = [
            (record.name, record.messages[0]["content"])
            for batch in plan.batches
            if all(span.source in opened.names.values() for span in batch.spans)
            for record in opened.read(batch)
        ]
        assert max(Counter(name for name, _ in found).values()) == 1
        return dict(found)


@pytest.fixture
def nights(tmp_path: Path, kit: Any) -> Nights:
    """An empty folder and a job over it."""
    return Nights(tmp_path, kit)


def test_seven_nights(nights: Nights) -> None:
    """Grown, a date folder, moved, replaced by the same, removed, edited: every record once, or a refusal."""
    first = [f"a{i}" for i in range(12)]
    nights.write("day1/p.jsonl", *first)
    assert sorted(nights.read(nights.plan()).values()) == sorted(first)

    nights.write("day1/p.jsonl", "a12", "a13", mode="a")  # night 2: it grew
    plan = nights.plan()
    assert plan.records == 14
    assert len(nights.read(plan)) == 14

    nights.write("day2/p.jsonl", *(f"b{i}" for i in range(5)))  # night 3: another folder, the same file name
    (nights.folder / "day1" / "p.jsonl").unlink()
    plan = nights.plan()
    assert plan.records == 19
    (told,) = [notice for notice in plan.notices if "its name is" in notice]
    assert "it holds other records from line 1 on" in told
    assert told.endswith("its name is 'day2-p'")
    assert sorted(nights.read(plan).values()) == [f"b{i}" for i in range(5)]

    (nights.folder / "day2").rename(nights.folder / "moved")  # night 4: moved, and grown there
    nights.write("moved/p.jsonl", "b5", mode="a")
    plan = nights.plan()
    assert plan.records == 20
    assert sorted(nights.read(plan).values()) == [f"b{i}" for i in range(6)]

    path = nights.folder / "moved" / "p.jsonl"  # night 5: copied anew, byte for byte
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(1, 1))
    assert nights.plan().records == 20

    nights.write("day1/p.jsonl", *first, "a12", "a13")  # night 6: the first is back
    plan = nights.plan()
    assert plan.records == 20
    assert len(nights.read(plan)) == 20

    path.write_text(
        json.dumps({"prompt": "new"}) + "\n" + path.read_text()
    )  # night 7: edited where it is planned
    with pytest.raises(
        SourceError, match=r"moved/p\.jsonl: expected the records that are planned, got others"
    ):
        nights.plan()


@pytest.mark.parametrize("size", [3, 12, 30], ids=["shorter", "as long", "longer"])
def test_a_file_of_the_same_name_elsewhere_is_another_source(nights: Nights, size: int) -> None:
    """Its records are all planned, none under the ids of the other's."""
    nights.write("day1/p.jsonl", *(f"a{i}" for i in range(12)))
    nights.plan()
    (nights.folder / "day1" / "p.jsonl").unlink()
    nights.write("day2/p.jsonl", *(f"b{i}" for i in range(size)))
    plan = nights.plan()
    assert plan.records == 12 + size
    assert len({name for name, _ in plan.sources}) == 2
    assert sorted(nights.read(plan).values()) == sorted(f"b{i}" for i in range(size))


@pytest.mark.parametrize("change", ["edited", "inserted", "deleted", "shorter", "empty"])
def test_a_file_that_is_changed_where_it_is_planned_is_refused(nights: Nights, change: str) -> None:
    """Before anything new is planned, with its lines and what to do; restored, it is planned on."""
    path = nights.write("p.jsonl", *(f"a{i}" for i in range(25)))
    planned = nights.plan().records
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    changed = {
        "edited": [*lines[:14], '{"prompt": "other"}\n', *lines[15:], '{"prompt": "new"}\n'],
        "inserted": ['{"prompt": "new"}\n', *lines],
        "deleted": [*lines[:3], *lines[4:], '{"prompt": "new"}\n'],
        "shorter": lines[:9],
        "empty": [],
    }[change]
    path.write_text("".join(changed))
    with pytest.raises(SourceError, match=r"p\.jsonl: expected the records that are planned.*restore it"):
        nights.plan()
    path.write_text(text + '{"prompt": "new"}\n')
    assert nights.plan().records == planned + 1


@pytest.mark.parametrize("older", [False, True], ids=["plan of today", "plan without digests"])
@pytest.mark.parametrize("follow", [("a", "b"), ("a",)], ids=["both follow", "one follows"])
def test_files_that_share_a_batch_are_compared_one_by_one(
    nights: Nights, follow: tuple[str, ...], older: bool
) -> None:
    """Two small files a day, of the same names every day: all of the second day's records are planned."""
    for name in ("a", "b"):
        nights.write(f"day1/{name}.jsonl", *(f"{name}1 {i}" for i in range(4)))
    nights.plan()
    if older:
        nights.forget_digests()
    for name in ("a", "b"):
        (nights.folder / "day1" / f"{name}.jsonl").unlink()
    held = [f"{name}2 {i}" for name in follow for i in range(9)]
    for name in follow:
        nights.write(f"day2/{name}.jsonl", *(text for text in held if text.startswith(name)))
    plan = nights.plan()
    assert sorted(nights.read(plan).values()) == sorted(held)


@pytest.mark.parametrize("older", [False, True], ids=["plan of today", "plan without digests"])
def test_a_file_is_held_to_the_plan_though_its_neighbour_is_gone(nights: Nights, older: bool) -> None:
    """They share a batch, one is deleted, a line is put at the top of the other: refused."""
    for name in ("a", "b"):
        nights.write(f"{name}.jsonl", *(f"{name} {i}" for i in range(4)))
    nights.plan()
    if older:
        nights.forget_digests()
    (nights.folder / "b.jsonl").unlink()
    nights.write("a.jsonl", "new", *(f"a {i}" for i in range(4)))
    with pytest.raises(SourceError, match=r"a\.jsonl: expected the records that are planned"):
        nights.plan()


def test_a_moved_file_is_known_though_its_neighbour_is_another(nights: Nights) -> None:
    """One of a batch moved, the other was replaced: the first keeps its name, the second gets a new one."""
    for name in ("a", "b"):
        nights.write(f"day1/{name}.jsonl", *(f"{name} {i}" for i in range(4)))
    nights.plan()
    (nights.folder / "day1").rename(nights.folder / "day2")
    nights.write("day2/b.jsonl", *(f"b2 {i}" for i in range(9)))
    nights.write("day2/a.jsonl", "a 4", mode="a")
    plan = nights.plan()
    assert plan.records == 8 + 9 + 1
    names = {name: Path(uri).relative_to(nights.folder).as_posix() for name, uri in plan.sources}
    assert names == {"a": "day2/a.jsonl", "b": "day1/b.jsonl", "day2-b": "day2/b.jsonl"}
    assert sorted(nights.read(plan).values()) == sorted(["a 4", *(f"b2 {i}" for i in range(9))])


def test_an_unchanged_file_is_not_read_again(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its size and time of change say enough; a plan that kept none is compared."""
    path = nights.write("p.jsonl", *(f"a{i}" for i in range(25)))
    nights.plan()
    seen = path.stat()
    path.write_text(path.read_text().replace("a3", "b3"))
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert nights.plan().records == 25  # nobody looked
    os.utime(path)
    with pytest.raises(SourceError):
        nights.plan()


def test_a_named_source_of_another_file_is_refused(nights: Nights, tmp_path: Path) -> None:
    """The job gives its name to another file: two files cannot have it."""
    one, two = nights.write("one.jsonl", "a", "b"), nights.write("two.jsonl", "c")
    for path, fits in ((one, True), (two, False)):
        prompts = PromptsSpec(sources=[{"uri": str(path), "name": "daily"}])
        spec = nights.spec.model_copy(update={"prompts": prompts})
        if fits:
            extend_plan(nights.ledger, open_sources(prompts), spec, "r")
            continue
        with pytest.raises(Exception, match="daily"):
            extend_plan(nights.ledger, open_sources(prompts), spec, "r")
