"""Exports byte for byte as they were when their trainers' own packages had read them (`make test-trainers`).

`PYTHONPATH=. python tests/tasks/export/test_golden.py` writes tests/data/exports anew from the rows
of tests/support/stores.py: run `make test-trainers` then, before it is committed. Of Arrow and Parquet
schema and the sha256 of the rows are held, for their bytes also hold the writer's version.
"""

import hashlib
import tempfile
from pathlib import Path
from typing import Any

import attrs
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.export.export import export
from tasks.export.options import ExportOptions
from tests.support.stores import folder_store, loop, make_store, plain

GOLDEN = Path(__file__).resolve().parents[2] / "data" / "exports"

COLUMNAR = {
    "speculators-arrow": {"to": "speculators-arrow", "boundary": "speculators-0.9.0-eagle3"},
    "datasets": {"to": "datasets", "merge_turns": True},
    "parquet": {"to": "parquet", "include": ("repetition",)},
}

VARIANTS: dict[str, dict[str, Any]] = {
    "raw": {"draft_vocab": 16},
    "specforge-boundary": {"boundary": "specforge-0.2.0-eagle3", "max_length": 12},
    "speculators-boundary": {"to": "speculators", "boundary": "speculators-0.9.0-eagle3"},
    "merged": {"merge_turns": True, "mask": ("think", "end")},
    "prefill": {"learn_prefill": True},
}


def table(path: Path) -> pa.Table:
    """Read a file of rows."""
    return pq.read_table(path) if path.suffix == ".parquet" else pa.ipc.open_stream(path).read_all()


def described(path: Path) -> bytes:
    """Return schema, metadata, count of rows, and the sha256 of these as JSON lines."""
    found = table(path)
    schema = found.schema
    rows = hashlib.sha256()
    for row in found.to_pylist():
        rows.update(orjson.dumps(row) + b"\n")
    value = {
        "columns": {field.name: str(field.type) for field in schema},
        "metadata": {key.decode(): orjson.loads(text) for key, text in (schema.metadata or {}).items()},
        "rows": found.num_rows,
        "sha256_of_rows": rows.hexdigest(),
    }
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n"


def write(folder: Path) -> dict[str, bytes]:
    """Export every variant below `folder`; return what a trainer reads of each, by name."""
    rejected = attrs.evolve(plain(3), code="repetition")
    store = make_store(folder / "store", [[*(plain(number) for number in range(3)), rejected], loop("x")])
    found = {}
    for name, fields in VARIANTS.items():
        export([store], [1.0], ExportOptions(**fields), folder_store(folder / name))
        for path in sorted((folder / name).rglob("*")):
            if path.is_file() and path.suffix != ".json":
                found[f"{name}.{path.name}"] = path.read_bytes()
    for name, fields in COLUMNAR.items():
        export([store], [1.0], ExportOptions(**fields), folder_store(folder / name))
        for path in sorted((folder / name / "train").iterdir()):
            if path.suffix in (".arrow", ".parquet"):
                found[f"{name}.{path.name}.json"] = described(path)
            elif path.name != "token_freq.pt":  # `state.json`, `dataset_info.json`
                found[f"{name}.{path.name}"] = path.read_bytes()
    return found


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Every variant as it is written now."""
    return write(tmp_path_factory.mktemp("golden"))


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.iterdir()))
def test_an_export_is_what_it_was(written: dict[str, bytes], name: str) -> None:
    """Byte for byte, columnar ones row for row."""
    assert written[name] == (GOLDEN / name).read_bytes()


def test_no_file_is_missing(written: dict[str, bytes]) -> None:
    """Every file of every variant is held."""
    assert set(written) == {path.name for path in GOLDEN.iterdir()}


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        for file, data in write(Path(temporary)).items():
            (GOLDEN / file).write_bytes(data)
