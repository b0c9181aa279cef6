"""Exports byte for byte as they were when their trainers' own packages had read them (`make test-trainers`).

`PYTHONPATH=. python tests/tasks/storage/trainers/test_golden.py` writes tests/data/exports anew from the
rows of tests/stores.py: run `make test-trainers` then, before it is committed. Arrow and Parquet are not
among them: their bytes also hold the writer's version.
"""

import tempfile
from pathlib import Path
from typing import Any

import pytest

from tasks.storage.trainers.export import export
from tasks.storage.trainers.options import ExportOptions
from tests.stores import folder_store, loop, make_store, plain

GOLDEN = Path(__file__).resolve().parents[3] / "data" / "exports"

VARIANTS: dict[str, dict[str, Any]] = {
    "raw": {"draft_vocab": 16},
    "specforge-boundary": {"boundary": "specforge-0.2.0-eagle3", "max_length": 12},
    "speculators-boundary": {"to": "speculators", "boundary": "speculators-0.9.0-eagle3"},
    "merged": {"merge_turns": True, "mask": ("think", "end")},
    "prefill": {"learn_prefill": True},
}


def write(folder: Path) -> dict[str, bytes]:
    """Export every variant below `folder`; return what a trainer reads of each, by name."""
    store = make_store(folder / "store", [[plain(number) for number in range(3)], loop("x")])
    found = {}
    for name, fields in VARIANTS.items():
        export([store], [1.0], ExportOptions(**fields), folder_store(folder / name))
        for path in sorted((folder / name).rglob("*")):
            if path.is_file() and path.suffix != ".json":
                found[f"{name}.{path.name}"] = path.read_bytes()
    return found


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Every variant as it is written now."""
    return write(tmp_path_factory.mktemp("golden"))


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.iterdir()))
def test_an_export_is_what_it_was(written: dict[str, bytes], name: str) -> None:
    """Byte for byte."""
    assert written[name] == (GOLDEN / name).read_bytes()


def test_no_file_is_missing(written: dict[str, bytes]) -> None:
    """Every file of every variant is held."""
    assert set(written) == {path.name for path in GOLDEN.iterdir()}


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        for file, data in write(Path(temporary)).items():
            (GOLDEN / file).write_bytes(data)
