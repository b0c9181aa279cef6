"""SIGKILL before and after every sync, write, link and request: the finished job is always the same."""

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from deployments.local.seaweed import Seaweed
from tasks.audit.reread import audit
from tasks.job.spec import StoreSpec
from tasks.store.contract import ObjectStore
from tasks.store.opening import find_job, open_store
from tasks.store.s3 import S3Store
from tasks.store.s3_client import make_client

BATCH_ROWS = 4


def crash_everywhere(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> int:
    """Run the crash script; return how many crash points there were."""
    script = Path(__file__).with_name("crash_child.py")
    command = [sys.executable, str(script), str(folder), *arguments]
    root = str(Path(__file__).parents[3])
    environment = os.environ | {"PYTHONPATH": root} | (env or {})
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout)["trials"])


def shards(store: ObjectStore) -> list[str]:
    """Return the keys of the shards that receipts list."""
    return sorted(orjson.loads(store.get(info.key))["shard"]["key"] for info in store.list("receipts/"))


def check_trial(store: ObjectStore, folder: Path, expected: list[str], rows: int, kit: Any) -> None:
    """Every row once, the same shards as undisturbed, few rows made again, no journal left over."""
    report = audit(store, kit.row_check)
    assert report.trainable, report.reason
    assert report.rows["total"] == rows
    assert shards(store) == expected
    made = Counter((folder / "made.log").read_text().split())
    assert len(made) == rows
    assert max(made.values()) <= 3  # two crashes: at most two more tries of what was not yet written
    assert list((folder / "journal").glob("*/*")) == []


@pytest.mark.process
@pytest.mark.parametrize("when", ["before", "after"])
def test_crash_at_every_file_call(tmp_path: Path, prompts: Callable[..., Path], kit: Any, when: str) -> None:
    """Folder store and journal survive a crash at each of their system calls, and a second one soon after."""
    path = str(prompts(rows=8))
    undisturbed = kit.job_spec(tmp_path / "undisturbed", path, batch={"rows": BATCH_ROWS})
    store = open_store(undisturbed.store, undisturbed.job_id)
    kit.run_job(store, undisturbed)
    expected = shards(store)
    memory = Path("/dev/shm")  # a process's death, not the disk's: memory will do
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as trials_folder:
        check_all(Path(trials_folder), path, when, expected, kit)


def check_all(home: Path, path: str, when: str, expected: list[str], kit: Any) -> None:
    """Crash everywhere over folder stores below `home`, and check every trial."""
    trials = crash_everywhere(home, path, when)
    assert trials > 60
    for trial in range(trials):
        folder = home / f"trial-{trial}"
        check_trial(find_job(StoreSpec(uri=str(folder / "store"))), folder, expected, 8, kit)


@pytest.mark.parametrize("when", ["before", "after"])
def test_crash_at_every_request(
    tmp_path: Path, prompts: Callable[..., Path], kit: Any, when: str, seaweed: Seaweed
) -> None:
    """The same over S3: `after` is a request that the server carried out and whose answer nobody heard."""
    path = str(prompts(rows=4))
    undisturbed = kit.job_spec(tmp_path / "undisturbed", path, batch={"rows": BATCH_ROWS})
    store = open_store(undisturbed.store, undisturbed.job_id)
    kit.run_job(store, undisturbed)
    expected = shards(store)
    env = seaweed.environment()
    trials = crash_everywhere(tmp_path / "trials", path, when, seaweed.http_url, seaweed.bucket, env=env)
    assert trials > 20
    spec = StoreSpec(uri=f"s3://{seaweed.bucket}", endpoint_url=seaweed.http_url, region="us-east-1")
    client = make_client(spec, seaweed.credentials, None)
    for trial in range(trials):
        found = S3Store(client, seaweed.bucket, f"{when}-{trial}/{undisturbed.job_id}", 20.0)
        check_trial(found, tmp_path / "trials" / f"trial-{trial}", expected, 4, kit)
    client.close()
