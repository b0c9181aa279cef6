"""SpecForge 0.2.0 and speculators 0.9.0 read our exports: the same ids, masks, labels, draft vocabularies."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tasks.dataset.training_reader import read_rows
from tasks.export.export import export
from tasks.export.options import ExportOptions
from tasks.store.contract import ObjectStore
from tests.support.stores import folder_store
from tests.trainers.conftest import Read

pytestmark = pytest.mark.trainers

LONGEST = 4096

SPECFORGE: dict[str, dict[str, Any]] = {
    "raw": {},
    "many-files": {"file_tokens": 200},
    "boundary": {"boundary": "specforge-0.2.0-eagle3"},
    "merged": {"boundary": "specforge-0.2.0-eagle3", "merge_turns": True},
}
SPECULATORS: dict[str, dict[str, Any]] = {
    "rows": {"to": "speculators", "file_tokens": 300},
    "raw": {"to": "speculators-arrow", "file_tokens": 300},
    "boundary": {"to": "speculators-arrow", "boundary": "speculators-0.9.0-eagle3"},
    "merged": {"to": "speculators-arrow", "boundary": "speculators-0.9.0-eagle3", "merge_turns": True},
}

Found = dict[str, dict[str, Any]]


def loaded(folder: Path, store: ObjectStore, read: Read, script: str, variants: Found) -> Found:
    """Export each variant and load them all in one process: importing the packages takes longest."""
    for name, fields in variants.items():
        export([store], [1.0], ExportOptions(draft_vocab=64, **fields), folder_store(folder / name))
    return dict(zip(variants, read(script, LONGEST, *(folder / name for name in variants)), strict=True))


@pytest.fixture(scope="module")
def specforge(tmp_path_factory: pytest.TempPathFactory, store: ObjectStore, read: Read) -> Found:
    """What SpecForge reads, by variant."""
    return loaded(tmp_path_factory.mktemp("specforge"), store, read, "read_specforge.py", SPECFORGE)


@pytest.fixture(scope="module")
def speculators(tmp_path_factory: pytest.TempPathFactory, store: ObjectStore, read: Read) -> Found:
    """What speculators reads, by variant."""
    return loaded(tmp_path_factory.mktemp("speculators"), store, read, "read_speculators.py", SPECULATORS)


def ours(store: ObjectStore) -> list[dict[str, Any]]:
    """Return ids and raw masks as the direct reader gives them."""
    return [{"ids": r.input_ids.tolist(), "mask": r.loss_mask.astype(int).tolist()} for r in read_rows(store)]


def same_rows(found: dict[str, Any], store: ObjectStore) -> bool:
    """Say whether ids and masks are ours, position by position, row by row."""
    return [{"ids": row["ids"], "mask": row["mask"]} for row in found["rows"]] == ours(store)


def made(row: dict[str, Any]) -> list[int]:
    """Return the ids that the model made."""
    return [i for i, learnt in zip(row["ids"], row["mask"], strict=True) if learnt]


def shifted(fed: Sequence[int], learnt: Sequence[int]) -> list[list[int]]:
    """Return the (fed, learnt) pairs as the scripts print them."""
    return [list(pair) for pair in zip(fed, learnt, strict=True)]


@pytest.mark.parametrize("variant", ["raw", "many-files"])
def test_specforge_reads_the_same_rows(specforge: Found, store: ObjectStore, variant: str) -> None:
    """Its prompt reader returns our ids and masks; after its shift every label is the id after the one fed.

    Raw, position i is fed id i+1 and learns id i+2: an answer's first pair is lost, and one position learns
    what lies behind the row's end.
    """
    assert same_rows(specforge[variant], store)
    for row, theirs in zip(ours(store), specforge[variant]["rows"], strict=True):
        assert theirs["pairs"] == shifted(made(row)[1:], [*made(row)[2:], -1])


def test_specforge_takes_our_draft_vocabulary(specforge: Found) -> None:
    """`vocab_mapping.pt` passes its own check and covers as much as the one it would have made."""
    assert specforge["raw"]["mapping"] == {"same_size": True, "same_counts": True}


@pytest.mark.parametrize("variant", ["rows", "raw"])
def test_speculators_reads_the_same_rows(speculators: Found, store: ObjectStore, variant: str) -> None:
    """Rows through `prepare-data`'s own path, and a prepared dataset through the trainer's: equal to ours."""
    assert same_rows(speculators[variant], store)
    assert speculators[variant]["seq_len"] == [len(row["ids"]) for row in ours(store)]


def test_speculators_shifts_to_the_next_id(speculators: Found, store: ObjectStore) -> None:
    """Raw, position i is fed id i and learns id i+1; the last learns what lies behind the row's end."""
    for row, theirs in zip(ours(store), speculators["raw"]["rows"], strict=True):
        assert theirs["pairs"] == shifted(made(row), [*made(row)[1:], -1])


def test_speculators_counts_as_we_do(speculators: Found) -> None:
    """`token_freq.pt` and the draft vocabulary equal those that it makes of the same rows."""
    assert speculators["raw"]["frequencies"] == {"counts": True, "d2t": True, "t2d": True}


@pytest.mark.parametrize("trainer", ["specforge", "speculators"])
def test_a_boundary_learns_every_pair(
    request: pytest.FixtureRequest, store: ObjectStore, trainer: str
) -> None:
    """With its own boundary a trainer learns each pair of an answer, first and last, and nothing else."""
    for row, theirs in zip(ours(store), request.getfixturevalue(trainer)["boundary"]["rows"], strict=True):
        assert theirs["ids"] == row["ids"]
        assert theirs["pairs"] == [list(pair) for pair in pairwise(made(row))]


@pytest.mark.parametrize("trainer", ["specforge", "speculators"])
def test_merged_turns_learn_what_single_ones_do(request: pytest.FixtureRequest, trainer: str) -> None:
    """A merged tool loop gives the pairs of its turns one after another; none crosses into a prompt."""
    found: Found = request.getfixturevalue(trainer)
    single = [pair for row in found["boundary"]["rows"][-3:] for pair in row["pairs"]]
    assert found["merged"]["rows"][-1]["pairs"] == single
    assert len(found["merged"]["rows"]) == len(found["boundary"]["rows"]) - 2


@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (2, 2)], ids=["one-process", "two-ranks-two-workers"])
def test_the_direct_reader_feeds_a_dataloader(
    store: ObjectStore, read: Read, ranks: int, workers: int
) -> None:
    """Every row once over the ranks, verbatim; a new loader that is told what was seen gives the rest."""
    found = read("read_direct.py", store.uri, ranks, workers, 8)
    rows = {row["row_id"]: row for rank in found["whole"] for row in rank}
    assert sum(map(len, found["whole"])) == len(rows)
    assert rows == {
        r.row_id: {"row_id": r.row_id, "ids": r.input_ids.tolist(), "mask": r.loss_mask.astype(int).tolist()}
        for r in read_rows(store)
    }
    for rank in range(ranks):
        assert found["before"][rank]
        parts = [row["row_id"] for row in found["before"][rank] + found["after"][rank]]
        whole = [row["row_id"] for row in found["whole"][rank]]
        assert (parts if workers == 0 else sorted(parts)) == (whole if workers == 0 else sorted(whole))
