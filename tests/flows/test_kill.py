"""SIGKILL at any instant: the finished dataset is the one of an undisturbed run, byte for byte."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from deployments.standin.launch import Standin
from tasks.storage.shard_reader import decode_rejected, decode_shard
from tests.jobs import Rawseq, opened, write_job, write_prompts

KILLS = 20
RECORDS = 120
IN_FLIGHT = 16
SEED = 20261129
"""Where the kills fall; printed with a failure."""

POLL_SECONDS = 0.005
STALLED_SECONDS = 120.0


def events(folder: Path) -> int:
    """Count what a run has left so far: bytes in journals and objects in the store."""
    journals = sum(size for size in _sizes(folder / "journals"))
    return journals + 5000 * len(_sizes(folder / "out"))


def _sizes(folder: Path) -> list[int]:
    """Return the sizes of all files below a folder that a run is changing meanwhile."""
    sizes = []
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                sizes.append((Path(path) / name).stat().st_size)
    return sizes


def kill_after(command: list[str], env: dict[str, str], folder: Path, more: int) -> bool:
    """Start a run and SIGKILL it once it has left `more` further events; False when it ended before."""
    before = events(folder)
    log = (folder / "killed.log").open("ab")
    with log, subprocess.Popen(command, env=env, cwd=folder, stdout=log, stderr=log) as process:
        deadline = time.monotonic() + STALLED_SECONDS
        while process.poll() is None:
            if events(folder) - before >= more:
                process.send_signal(signal.SIGKILL)
                process.wait()
                return True
            assert time.monotonic() < deadline, (folder / "killed.log").read_text()[-3000:]
            time.sleep(POLL_SECONDS)
    return False


def shard_names(store: Path) -> list[str]:
    """Return the sha256 names of the shards that receipts list."""
    found = []
    for path in sorted(store.rglob("receipts/*.json")):
        receipt = json.loads(path.read_bytes())
        if receipt["shard"] is not None:
            found.append(receipt["shard"]["sha256"])
    return found


def rows_in(store: Path) -> list[str]:
    """Return the row ids of every file that a receipt lists."""
    names: list[str] = []
    job = opened(store)
    for path in sorted(store.rglob("receipts/*.json")):
        receipt = json.loads(path.read_bytes())
        if receipt["shard"]:
            names += decode_shard(job.get(receipt["shard"]["key"])).row_ids
        if receipt["rejected"]:
            names += decode_rejected(job.get(receipt["rejected"]["key"])).row_ids
    return names


def started_generations(url: str) -> int:
    """Return how many generations the server has begun."""
    with urllib.request.urlopen(f"{url}/standin/counters") as answer:
        return int(json.load(answer)["generations_started"])


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_twenty_kills_leave_the_undisturbed_dataset(
    tmp_path: Path, rawseq: Rawseq, rawseq_env: dict[str, str], standin: Standin
) -> None:
    """20 SIGKILLs at random instants: every row once, equal shards, waste bounded by the rows in flight."""
    quiet, killed = tmp_path / "quiet", tmp_path / "killed"
    for folder in (quiet, killed):
        folder.mkdir()
    prompts = write_prompts(tmp_path / "p.jsonl", RECORDS)
    jobs = [
        write_job(
            folder / "job.yaml",
            standin.url,
            prompts,
            folder / "out",
            batch={"rows": 8, "in_flight": IN_FLIGHT},
        )
        for folder in (quiet, killed)
    ]
    undisturbed = rawseq("run", str(jobs[0]))
    assert undisturbed.status == 0, undisturbed.stderr
    total = events(quiet)

    dice = random.Random(SEED)
    begun, kills = started_generations(standin.url), 0
    command = [sys.executable, "-m", "deployments.main", "run", str(jobs[1])]
    for _ in range(KILLS):
        kills += kill_after(command, rawseq_env, killed, dice.randrange(1, max(2, 2 * total // KILLS)))
    last = rawseq("run", str(jobs[1]))
    assert last.status == 0, last.stderr
    wasted = started_generations(standin.url) - begun - undisturbed.answer["generated_rows"]

    assert kills >= KILLS // 2, f"only {kills} of {KILLS} runs were killed before their end (seed {SEED})"
    names = rows_in(killed / "out")
    assert len(names) == len(set(names)) == undisturbed.answer["rows"]["total"]
    assert shard_names(killed / "out") == shard_names(quiet / "out")
    probes = 6 * (kills + 1)
    assert wasted <= kills * IN_FLIGHT + probes, f"{wasted} generations wasted by {kills} kills"
    assert rawseq("verify", str(killed / "out")).answer["trainable"] is True
