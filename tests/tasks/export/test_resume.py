"""SIGKILL at any instant, then the same export again: the same bytes, and nothing written twice."""

import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import DataError, SurroundingsError
from tasks.export.export import export
from tasks.export.files import PROGRESS
from tasks.export.options import ExportOptions
from tasks.store.contract import ObjectStore
from tests.support.stores import folder_store, loop, make_store, plain

OPTIONS = {"eval_share": 0.2, "file_tokens": 1500, "merge_turns": True, "draft_vocab": 64, "seed": 7}
"""Those of `export_child.py`."""

CHILD = Path(__file__).with_name("export_child.py")
SECONDS = 120.0


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ObjectStore:
    """Some 1,500 rows in fifteen batches."""
    folder = tmp_path_factory.mktemp("resume") / "store"
    batches = [
        [*(plain(100 * batch + row, reasoning=40 + row % 30) for row in range(100)), *loop(f"x{batch}")]
        for batch in range(15)
    ]
    return make_store(folder, batches)


def digests(folder: Path) -> dict[str, str]:
    """Return the sha256 of every file below a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def start(store: ObjectStore, out: Path, to: str) -> subprocess.Popen[str]:
    """Start an export in a process of its own."""
    command = [sys.executable, str(CHILD), store.uri, str(out), to]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.process
@pytest.mark.parametrize("to", ["specforge", "datasets"])
def test_killed_and_run_again(tmp_path: Path, store: ObjectStore, to: str) -> None:
    """Killed some files on; what stood stays untouched."""
    whole, out = tmp_path / "whole", tmp_path / "out"
    export([store], [1.5], ExportOptions(to=to, **OPTIONS), folder_store(whole))
    process = start(store, out, to)
    deadline = time.monotonic() + SECONDS
    while len(list(out.rglob("*/*0*.*"))) < 12:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.001)  # polling for the next file
    process.kill()
    process.communicate()
    assert not (out / "manifest.json").exists()
    standing = {path: path.stat().st_mtime_ns for path in out.rglob("train/*0*") if path.name[0] != "."}
    with start(store, out, to) as last:
        said = last.communicate(timeout=SECONDS)[0]
        assert last.returncode == 0, said
    assert "files of an earlier run stand" in said
    assert digests(out) == digests(whole)
    untouched = sum(path.stat().st_mtime_ns == standing[path] for path in standing)
    assert untouched >= len(standing) - 1  # the newest may not have reached the record


def record(out: Path, part: dict[str, Any]) -> Path:
    """Write a finished file's record as an unfinished export has it; return its path."""
    path = out / f"{PROGRESS}{part['name'].replace('/', '-')}.json"
    path.write_text(json.dumps(part))
    return path


def test_a_torn_record_costs_one_file(tmp_path: Path, store: ObjectStore) -> None:
    """Half a line, a file that changed, one that is gone: only these are written again, to the same bytes."""
    out, options = tmp_path / "out", ExportOptions(file_tokens=5_000)
    export([store], [1.0], options, folder_store(out))
    expected = digests(out)
    parts = [entry for entry in json.loads((out / "manifest.json").read_text())["files"] if "split" in entry]
    for part in parts[:-1]:
        record(out, part)
    record(out, parts[-1]).write_text('{"name":"tra')
    (out / "manifest.json").unlink()
    first, second = (out / part["name"] for part in parts[:2])
    first.write_bytes(first.read_bytes()[:-1] + b" ")
    second.unlink()
    said: list[str] = []
    export([store], [1.0], options, folder_store(out), say=said.append)
    assert said == [f"{len(parts) - 3} files of an earlier run stand"]
    assert digests(out) == expected


def test_a_record_of_other_rows_is_refused(tmp_path: Path, store: ObjectStore) -> None:
    """A file that stands but does not hold what this export would write stops it."""
    out = tmp_path / "out"
    export([store], [1.0], ExportOptions(file_tokens=20_000), folder_store(out))
    (out / "manifest.json").unlink()
    part = out / "train" / "part-00000.jsonl"
    data = part.read_bytes()
    size = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    counts = {"rows": 1, "tokens": 2, "supervised": 1}
    record(out, {"name": "train/part-00000.jsonl", "split": "train"} | size | counts)
    with pytest.raises(DataError, match="on record: export to another place"):
        export([store], [1.0], ExportOptions(file_tokens=20_000), folder_store(out))


@pytest.mark.process
def test_one_export_at_a_time(tmp_path: Path, store: ObjectStore) -> None:
    """A second process on the folder is told so."""
    out = tmp_path / "out"
    with start(store, out, "specforge") as process:
        deadline = time.monotonic() + SECONDS
        while not list(out.rglob("train/*.jsonl")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.001)  # polling for the first file
        with pytest.raises(SurroundingsError, match="only process that exports into this folder"):
            export([store], [1.0], ExportOptions(), folder_store(out))
        process.kill()
