"""Exports over real stores and files: every format says the same, every row is accounted for."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.dataset.training_reader import read_rows
from tasks.errors import DataError, JobError
from tasks.export.export import export
from tasks.export.options import ExportOptions
from tasks.ledger.ledger import Ledger
from tasks.store.contract import ObjectStore
from tests.support.stores import (
    RESOLVED,
    Row,
    answer,
    commit,
    folder_store,
    loop,
    make_store,
    plain,
    prompt_of,
)

Rows = list[tuple[list[int], list[int]]]


def jsonl(folder: Path) -> Rows:
    """Read a split of JSON lines."""
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]
    return [(row["input_ids"], row["loss_mask"]) for row in map(json.loads, lines)]


def arrow(folder: Path) -> Rows:
    """Read a split that `datasets` saved, with `datasets`."""
    data = datasets.load_from_disk(str(folder)).with_format(None)
    assert data["seq_len"] == [len(ids) for ids in data["input_ids"]]
    return list(zip(data["input_ids"], data["loss_mask"], strict=True))


def torch_arrow(folder: Path) -> Rows:
    """Read a split as `datasets` would if PyTorch were there: rows come as tensors."""
    state = json.loads((folder / "state.json").read_text())
    assert state["_format_type"] == "torch"
    tables = [pa.ipc.open_stream(folder / part["filename"]).read_all() for part in state["_data_files"]]
    table = pa.concat_tables(tables)
    assert [str(field.type) for field in table.schema] == ["list<item: int64>", "list<item: int64>", "int64"]
    assert table["seq_len"].to_pylist() == [len(ids) for ids in table["input_ids"].to_pylist()]
    return list(zip(table["input_ids"].to_pylist(), table["loss_mask"].to_pylist(), strict=True))


def parquet(folder: Path) -> Rows:
    """Read a split of Parquet files."""
    table = pq.read_table(sorted(folder.glob("*.parquet")))
    return list(zip(table["input_ids"].to_pylist(), table["loss_mask"].to_pylist(), strict=True))


READ: dict[str, Callable[[Path], Rows]] = {
    "specforge": jsonl,
    "speculators": jsonl,
    "speculators-arrow": torch_arrow,
    "datasets": arrow,
    "parquet": parquet,
}


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    """Forty plain rows and a tool loop in three batches, two rows of them rejected."""
    rows = [plain(number) for number in range(40)]
    rows[5] = attrs.evolve(rows[5], code="repetition")
    rows[6] = attrs.evolve(rows[6], code="aborted")
    return make_store(tmp_path / "store", [rows[:20], rows[20:], loop("x")])


def run(store: ObjectStore | list[ObjectStore], out: Path, **fields: Any) -> dict[str, Any]:
    """Export with weight 1 unless `weights` says otherwise."""
    stores = store if isinstance(store, list) else [store]
    weights = fields.pop("weights", [1.0] * len(stores))
    return export(stores, weights, ExportOptions(**fields), folder_store(out))


def expected(store: ObjectStore) -> Rows:
    """Return what the direct reader says."""
    return [(row.input_ids.tolist(), row.loss_mask.astype(int).tolist()) for row in read_rows(store)]


@pytest.mark.parametrize("to", READ)
@pytest.mark.parametrize("file_tokens", [None, 100], ids=["one-file", "many-files"])
def test_every_format_holds_the_rows(
    tmp_path: Path, store: ObjectStore, to: str, file_tokens: int | None
) -> None:
    """Ids and masks equal the direct reader's, position by position, in source order, over any files."""
    report = run(store, tmp_path / "out", to=to, file_tokens=file_tokens)
    assert READ[to](tmp_path / "out" / "train") == expected(store)
    files = [entry for entry in report["files"] if "split" in entry]
    assert (len(files) > 3) == (file_tokens is not None)
    assert all(entry["tokens"] <= (file_tokens or 10**9) for entry in files)
    assert sum(entry["rows"] for entry in files) == report["rows"]["written"]["train"] == 41


def test_rows_add_up(tmp_path: Path, store: ObjectStore) -> None:
    """Read = written + repeated + left out + refused, per reason, with names."""
    full = Row("full", (), answer((1, 2), (3,)))
    other = make_store(tmp_path / "other", [[plain(3), plain(90), full]], name="other")
    report = run([store, other], tmp_path / "out", mask=("reasoning",), max_length=12, eval_share=0.3)
    rows = report["rows"]
    left = rows["repeated"] + rows["left_out_by_weight"] + sum(rows["refused"].values())
    assert rows["read"] == 41 + 3 == sum(rows["written"].values()) + left
    assert rows["repeated"] == 1  # row 3 of both
    assert rows["refused"]["over_length"] > 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["rows"] == rows
    assert len(manifest["refused_rows"]["over_length"]) == rows["refused"]["over_length"]
    lengths = [cost["longest"] for cost in report["lengths"]]
    assert lengths == [4096, 8192, 16384, 32768]


@pytest.mark.parametrize(
    ("row", "fields", "reason"),
    [
        pytest.param(Row("full", (), answer((1,), (2,))), {}, "mask_full", id="full"),
        pytest.param(plain(1), {"mask": ("reasoning", "content", "think", "end")}, "mask_empty", id="empty"),
        pytest.param(
            Row("one", prompt_of(5), (("end", (902,)),)),
            {"boundary": "specforge-0.2.0-eagle3"},
            "mask_empty",
            id="empty-after-the-shift",
        ),
        pytest.param(plain(1), {"max_length": 5}, "over_length", id="prompt-too-long"),
        pytest.param(plain(1), {"max_length": 9, "over_length": "drop"}, "over_length", id="dropped"),
        pytest.param(
            Row("big", prompt_of(5), answer((1000,), (2,))),
            {},
            "id_out_of_vocabulary",
            id="out-of-vocabulary",
        ),
    ],
)
def test_rows_that_teach_nothing_are_refused_by_name(
    tmp_path: Path, row: Row, fields: dict[str, Any], reason: str
) -> None:
    """Counted under their reason, named, and not in any file."""
    made = make_store(tmp_path / "store", [[row]])
    report = run(made, tmp_path / "out", to="specforge", **fields)
    assert report["rows"]["refused"] == {reason: 1}
    assert report["rows"]["written"] == {"train": 0, "eval": 0}
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["refused_rows"] == {reason: [row.row_id]}
    assert not list((tmp_path / "out").glob("train/*"))


def test_included_codes(tmp_path: Path, store: ObjectStore) -> None:
    """A rejected row comes in by its code, verbatim, and no other does."""
    run(store, tmp_path / "out", include=("repetition",))
    rows = jsonl(tmp_path / "out" / "train")
    assert len(rows) == 42
    assert plain(5).ids in [ids for ids, _ in rows]
    assert plain(6).ids not in [ids for ids, _ in rows]


def test_turns_are_merged(tmp_path: Path, store: ObjectStore) -> None:
    """A loop of three turns becomes one sequence whose mask has all three answers."""
    report = run(store, tmp_path / "out", merge_turns=True)
    assert report["rows"]["turns_merged"] == 2
    ids, mask = jsonl(tmp_path / "out" / "train")[-1]
    first, second, third = loop("x")
    assert ids == third.ids
    assert sum(mask) == sum(len(row.output) for row in (first, second, third))
    assert len(jsonl(tmp_path / "out" / "train")) == 39


def test_cut_is_counted(tmp_path: Path, store: ObjectStore) -> None:
    """Cut rows keep their first ids; the supervised ids that went are counted."""
    report = run(store, tmp_path / "out", max_length=12)
    rows = jsonl(tmp_path / "out" / "train")
    kept = [(ids, mask) for ids, mask in expected(store) if any(mask[:12])]
    assert rows == [(ids[:12], mask[:12]) for ids, mask in kept]
    assert report["supervised_lost_by_cut"] == sum(sum(mask[12:]) for _, mask in kept) > 0
    assert report["rows"]["cut"] == sum(len(ids) > 12 for ids, _ in kept)


def test_the_split_is_by_record(tmp_path: Path, store: ObjectStore) -> None:
    """No source record is on both sides; together they are everything; frequencies are those of train."""
    run(store, tmp_path / "out", to="datasets", eval_share=0.3)
    both = datasets.load_from_disk(str(tmp_path / "out"))
    sides = {split: {row_id.split("#")[0] for row_id in both[split]["row_id"]} for split in both}
    assert not sides["train"] & sides["eval"]
    assert len(both["train"]) + len(both["eval"]) == 41
    assert both["eval"]


def test_stores_are_weighted_and_deduplicated(tmp_path: Path, store: ObjectStore) -> None:
    """A row that lies in two stores counts with the larger weight, never with both."""
    other = make_store(tmp_path / "other", [[plain(0), plain(100)]], name="other")
    report = run([store, other], tmp_path / "out", weights=[1.0, 2.0])
    ids = [tuple(ids) for ids, _ in jsonl(tmp_path / "out" / "train")]
    assert ids.count(tuple(plain(0).ids)) == ids.count(tuple(plain(100).ids)) == 2
    assert ids.count(tuple(plain(1).ids)) == 1
    assert report["rows"]["repeated"] == 1
    run([store, other], tmp_path / "all", dedup="none")
    assert len(jsonl(tmp_path / "all" / "train")) == 43


def test_one_answer_per_prompt(tmp_path: Path) -> None:
    """`--dedup prompts` keeps the first store's answer, and the samples of a prompt."""
    one = make_store(tmp_path / "one", [[plain(1), plain(1, reasoning=6, sample=1)]], name="one")
    two = make_store(tmp_path / "two", [[plain(1, content=9), plain(2)]], name="two")
    run([one, two], tmp_path / "out", dedup="prompts")
    assert [ids for ids, _ in jsonl(tmp_path / "out" / "train")] == [
        plain(1).ids,
        plain(1, reasoning=6).ids,
        plain(2).ids,
    ]


def test_stores_of_two_tokenizers_do_not_mix(tmp_path: Path, store: ObjectStore) -> None:
    """Equal ids would mean different text."""
    tokenizer = RESOLVED["tokenizer"] | {"files": {"tokenizer.json": "bb"}}
    other = make_store(
        tmp_path / "other", [[plain(0)]], name="other", resolved=RESOLVED | {"tokenizer": tokenizer}
    )
    with pytest.raises(JobError, match="expected the tokenizer of"):
        run([store, other], tmp_path / "out")


def test_a_growing_dataset(tmp_path: Path, store: ObjectStore) -> None:
    """An export stands on the receipts that it began with; a new folder takes later ones."""
    before = run(store, tmp_path / "out")
    ledger = Ledger(store, str(Ledger(store, "").job()["job_id"]))
    commit(ledger, 3, [plain(200)], 43)
    again = run(store, tmp_path / "out")
    assert again["state"] == "already complete"
    assert again["files"] == before["files"]
    assert run(store, tmp_path / "new")["rows"]["read"] == before["rows"]["read"] + 1
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert [receipt["batch"] for receipt in manifest["stores"][0]["receipts"]] == [0, 1, 2]


def test_the_highest_generation_counts(tmp_path: Path, store: ObjectStore) -> None:
    """A batch that was made again is exported as it is now."""
    ledger = Ledger(store, str(Ledger(store, "").job()["job_id"]))
    commit(ledger, 2, [plain(300)], 40, generation=1)
    run(store, tmp_path / "out")
    ids = [ids for ids, _ in jsonl(tmp_path / "out" / "train")]
    assert ids[-1] == plain(300).ids
    assert len(ids) == 39


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("notes.txt", "expected nothing there", id="other-files"),
        pytest.param("export.json", "expected what an export", id="foreign-request"),
    ],
)
def test_a_foreign_folder_is_left_alone(tmp_path: Path, store: ObjectStore, name: str, message: str) -> None:
    """Nothing is written beside what is not ours."""
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text("{")
    before = sorted(out.iterdir())
    with pytest.raises(JobError, match=message):
        run(store, out)
    assert sorted(out.iterdir()) == before


def test_another_export_is_not_mixed_in(tmp_path: Path, store: ObjectStore) -> None:
    """The option that differs is named with both values."""
    run(store, tmp_path / "out")
    with pytest.raises(JobError, match=r"holds an export with max_length None, now 64"):
        run(store, tmp_path / "out", max_length=64)


def test_a_changed_file_is_found(tmp_path: Path, store: ObjectStore) -> None:
    """A finished export is what its manifest says, or an error names the file."""
    run(store, tmp_path / "out")
    part = tmp_path / "out" / "train" / "part-00000.jsonl"
    part.write_bytes(part.read_bytes()[:-1] + b" ")
    with pytest.raises(DataError, match=r"part-00000.jsonl: expected sha256"):
        run(store, tmp_path / "out")


def test_a_changed_shard_is_not_exported(tmp_path: Path, store: ObjectStore) -> None:
    """A shard that is not what its receipt says stops the export, and leaves no half file."""
    key = next(info.key for info in store.list("shards/"))
    store.put(key, store.get(key) + b"x")
    with pytest.raises(DataError, match="expected sha256"):
        run(store, tmp_path / "out")
    assert not list((tmp_path / "out").rglob(".tmp-*"))


def test_an_empty_dataset(tmp_path: Path) -> None:
    """Nothing is committed yet: said, not written."""
    with pytest.raises(JobError, match="expected committed batches to export"):
        run(make_store(tmp_path / "store", []), tmp_path / "out")


def test_frequencies(tmp_path: Path, store: ObjectStore) -> None:
    """Counts are those of the supervised ids; the mapping files agree with each other."""
    run(store, tmp_path / "out", to="frequencies", draft_vocab=50)
    counts = np.zeros(1000, np.int64)
    for ids, mask in expected(store):
        counts += np.bincount(np.array(ids)[np.array(mask, bool)], minlength=1000)
    d2t, t2d = (np.load(tmp_path / "out" / f"{name}-50.npy") for name in ("d2t", "t2d"))
    assert (d2t + np.arange(50)).tolist() == np.flatnonzero(t2d).tolist()
    assert counts[t2d].min() >= counts[~t2d].max()
    names = sorted(path.name for path in (tmp_path / "out").iterdir() if path.suffix in (".pt", ".npy"))
    assert names == ["d2t-50.npy", "t2d-50.npy", "token_freq.pt", "vocab_mapping.pt"]
