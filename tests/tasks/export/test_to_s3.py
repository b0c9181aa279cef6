"""Exports to S3, a real SeaweedFS: the same bytes as in a folder, whatever is killed on the way."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments.local.seaweed import Seaweed
from tasks.errors import DataError, JobError
from tasks.export.export import export
from tasks.export.options import ExportOptions
from tasks.job.spec import StoreSpec
from tasks.store.contract import ObjectStore
from tasks.store.opening import open_store
from tests.support.stores import folder_store, loop, make_store, plain

OPTIONS = {"eval_share": 0.2, "file_tokens": 1500, "merge_turns": True, "draft_vocab": 64, "seed": 7}
"""Those of `export_child.py`."""

CHILD = Path(__file__).with_name("export_child.py")
SECONDS = 120.0


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ObjectStore:
    """Some 400 rows in four batches."""
    batches = [
        [*(plain(100 * batch + row, reasoning=40 + row % 30) for row in range(100)), *loop(f"x{batch}")]
        for batch in range(4)
    ]
    return make_store(tmp_path_factory.mktemp("to-s3") / "store", batches)


@pytest.fixture
def out(seaweed: Seaweed, s3_spec: StoreSpec) -> Iterator[ObjectStore]:
    """An empty prefix."""
    with contextlib.closing(open_store(s3_spec, "", seaweed.credentials)) as opened:
        yield opened


@pytest.fixture
def local(tmp_path: Path, store: ObjectStore) -> dict[str, bytes]:
    """The same export in a folder."""
    place = folder_store(tmp_path / "local")
    export([store], [1.5], ExportOptions(to="specforge", **OPTIONS), place)
    return files(place)


def files(place: ObjectStore) -> dict[str, bytes]:
    """Return every object by key."""
    return {info.key: place.get(info.key) for info in place.list("")}


def start(store: ObjectStore, out: ObjectStore, seaweed: Seaweed) -> subprocess.Popen[str]:
    """Start an export in a process of its own, its keys in the environment."""
    env = os.environ | seaweed.environment() | {"AWS_ENDPOINT_URL_S3": seaweed.http_url}
    command = [sys.executable, str(CHILD), store.uri, out.uri, "specforge"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)


def wait_for_parts(out: ObjectStore, count: int, process: subprocess.Popen[str]) -> None:
    """Return once so many files of rows are there."""
    deadline = time.monotonic() + SECONDS
    while len([info for info in out.list("") if "/part-" in info.key]) < count:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.01)  # polling for the next file


def test_killed_between_files_and_run_again(
    seaweed: Seaweed, store: ObjectStore, out: ObjectStore, local: dict[str, bytes]
) -> None:
    """Finished files are there before the manifest; run again they stay, and all is as in a folder."""
    process = start(store, out, seaweed)
    wait_for_parts(out, 5, process)
    process.kill()
    process.communicate()
    assert out.head("manifest.json") is None
    standing = {info.key: info.modified for info in out.list("train/")}
    with start(store, out, seaweed) as last:
        said = last.communicate(timeout=SECONDS)[0]
        assert last.returncode == 0, said
    assert "files of an earlier run stand" in said
    assert files(out) == local
    kept = {info.key: info.modified for info in out.list("train/") if info.key in standing}
    assert sum(kept[key] == standing[key] for key in standing) >= len(standing) - 1


def test_two_at_once_write_the_same(
    seaweed: Seaweed, store: ObjectStore, out: ObjectStore, local: dict[str, bytes]
) -> None:
    """S3 has no lock for two machines: both finish, with one set of files."""
    with start(store, out, seaweed) as one, start(store, out, seaweed) as two:
        for process in (one, two):
            said = process.communicate(timeout=SECONDS)[0]
            assert process.returncode == 0, said
    assert files(out) == local


def test_a_finished_export_is_checked(store: ObjectStore, out: ObjectStore) -> None:
    """Run again it is complete; an object that was changed since is named; other options are refused."""
    options = ExportOptions(to="speculators")
    assert export([store], [1.0], options, out)["state"] == "written"
    assert export([store], [1.0], options, out)["state"] == "already complete"
    with pytest.raises(JobError, match="holds an export with to 'speculators', now 'parquet'"):
        export([store], [1.0], ExportOptions(to="parquet"), out)
    out.put("train/part-00000.jsonl", b"{}\n")
    with pytest.raises(DataError, match=r"part-00000.jsonl: expected sha256"):
        export([store], [1.0], options, out)


def test_a_prefix_with_other_objects_is_left_alone(store: ObjectStore, out: ObjectStore) -> None:
    """Nothing is written beside what is not ours."""
    out.put("notes.txt", b"mine")
    with pytest.raises(JobError, match=r"expected nothing there, got notes\.txt"):
        export([store], [1.0], ExportOptions(), out)
    assert files(out) == {"notes.txt": b"mine"}
