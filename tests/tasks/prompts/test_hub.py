"""`hf://` sources, over dataset folders: data files, and what `save_to_disk` leaves."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import orjson
import pytest

from tasks.errors import SourceError
from tasks.job.spec import PromptsSpec
from tasks.ledger.ledger import Ledger
from tasks.prompts.opening import open_sources
from tasks.prompts.plan_batches import extend_plan
from tasks.prompts.sources import Sources
from tasks.store.opening import open_store


@pytest.fixture(scope="module", autouse=True)
def _quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the library's cache in the test's folder, and its bars off the screen."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
        datasets.disable_progress_bars()
        yield
        datasets.enable_progress_bars()


def rows(count: int, first: int = 0) -> list[dict[str, Any]]:
    """Return numbered records whose optional column is null in every second one."""
    return [
        {
            "id": f"r{n}",
            "messages": [{"role": "user", "content": f"Say {n}", "name": None}],
            "note": n if n % 2 else None,
        }
        for n in range(first, first + count)
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset folder of data files with a train and a test split."""
    home = tmp_path / "sums"
    home.mkdir()
    for name, items in (("train", rows(600)), ("test", rows(3, 900))):
        (home / f"{name}.jsonl").write_bytes(b"".join(orjson.dumps(item) + b"\n" for item in items))
    return home


def open_at(address: str) -> Sources:
    """Open one source."""
    return open_sources(PromptsSpec(sources=[address]))


def ids(address: str) -> list[str]:
    """Return every record's id."""
    return [record.record_id for record, _ in open_at(address).scan()]


def test_splits_of_data_files(folder: Path) -> None:
    """A split is chosen by name; rows are records, and null columns are absent from them."""
    assert ids(f"hf://{folder}::test") == ["r900", "r901", "r902"]
    found = [record for record, _ in open_at(f"hf://{folder}:default:train").scan()]
    assert [record.record_id for record in found] == [f"r{n}" for n in range(600)]
    assert found[0].messages == ({"role": "user", "content": "Say 0"},)
    assert [record.metadata for record in found[:2]] == ["{}", '{"note":1}']
    assert found[0].name == "sums-default-train:r0"


@pytest.mark.parametrize("several", [False, True], ids=["dataset", "dataset-dict"])
def test_saved_datasets(tmp_path: Path, several: bool) -> None:
    """What `save_to_disk` leaves is read too; the only split needs no name."""
    one = datasets.Dataset.from_list(rows(5), split="train")
    (datasets.DatasetDict(train=one) if several else one).save_to_disk(tmp_path / "saved")
    assert ids(f"hf://{tmp_path}/saved") == [f"r{n}" for n in range(5)]
    assert ids(f"hf://{tmp_path}/saved::train") == [f"r{n}" for n in range(5)]
    with pytest.raises(SourceError, match=r"expected a split 'test', got splits train"):
        ids(f"hf://{tmp_path}/saved::test")
    with pytest.raises(SourceError, match=r"expected no subset of a saved dataset, got 'x'"):
        ids(f"hf://{tmp_path}/saved:x")


def test_planned_and_read_again(folder: Path, tmp_path: Path, kit: Any, prompts: Callable[..., Path]) -> None:
    """A mixture of a dataset and a file is planned, grows, and any batch is read by another run."""
    sources = [
        {"uri": f"hf://{folder}::train", "weight": 3, "name": "sums"},
        {"uri": str(prompts("a.jsonl", 100)), "weight": 1},
    ]
    ledger = None
    for limit in (50, 400):
        spec = kit.job_spec(tmp_path, prompts={"sources": sources, "limit": limit})
        ledger = Ledger(open_store(spec.store, spec.job_id), spec.job_id)
        plan = extend_plan(ledger, open_sources(spec.prompts), spec, "r")
    again = open_sources(spec.prompts)
    again.know(plan.sources)
    again.seal = (spec.job_id, "r")
    names = [record.name for batch in plan.batches for record in again.read(batch)]
    assert len(names) == len(set(names)) == 400
    assert [name for name in names if name.startswith("sums:")] == [f"sums:r{n}" for n in range(300)]


def test_a_changed_dataset_is_noticed(folder: Path, tmp_path: Path, kit: Any) -> None:
    """A batch is read only if its rows are what was planned."""
    spec = kit.job_spec(tmp_path, f"hf://{folder}::test")
    plan = extend_plan(
        Ledger(open_store(spec.store, spec.job_id), spec.job_id), open_sources(spec.prompts), spec, "r"
    )
    (folder / "test.jsonl").write_bytes(b"".join(orjson.dumps(item) + b"\n" for item in rows(3, 901)))
    again = open_sources(spec.prompts)
    again.know(plan.sources)
    again.seal = (spec.job_id, "r")
    with pytest.raises(SourceError, match="expected the records that were planned"):
        again.read(plan.batches[0])


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        ("", r"sums: expected hf://…:subset:split, as there are several, got splits train, test"),
        ("::dev", r"sums::dev: expected a split 'dev', got splits train, test"),
        (":other:train", r"sums:other:train: expected a dataset, got: .*'other' not found"),
        (":a:b:c", r"prompts\.sources\[0\]: expected hf://org/repo\[:subset\[:split\]\], got"),
        ("-not-there", r"sums-not-there: expected a dataset, got: Couldn't find any data file"),
    ],
    ids=["no-split", "split", "subset", "address", "absent"],
)
def test_datasets_that_are_not_there(folder: Path, tail: str, message: str) -> None:
    """A wrong address says what there is."""
    with pytest.raises(SourceError, match=message):
        ids(f"hf://{folder}{tail}")


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the library the message has the command that installs it."""
    monkeypatch.delitem(sys.modules, "datasets")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(SourceError, match=r"prompts\.sources\[0\]: .*found none: pip install 'rawseq\[hf\]'"):
        open_at("hf://org/repo")
