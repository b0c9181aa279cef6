"""The whole flow over a server that misbehaves: the dataset is that of an undisturbed run, byte for byte."""

import json
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from deployments.standin.launch import Standin
from tests.support.jobs import Rawseq, write_job, write_prompts

FAULTS = {
    "queue_full": "*6",
    "error_500_text": "*1",
    "abort_200": "aborted*1",
    "empty_ids": "*1",
    "wrong_json": "*1",
    "truncate_body": "*1",
    "reset_before_reply": "*1",
}
"""Fewer failures in a row than make a server pass a fresh probe: that is tested in tests/tasks/fleet."""


def call(url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """GET or POST JSON."""
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as reply:
        return dict(json.loads(reply.read()))


def shards(store: Path) -> list[str]:
    """Return the names of the shards, which are the SHA-256 of their bytes."""
    return sorted(path.name for path in store.rglob("shards/*"))


def test_faults_leave_the_undisturbed_dataset(tmp_path: Path, rawseq: Rawseq, standin: Standin) -> None:
    """Switched on when rows are on their way, each fault acts; no row is lost, doubled or other."""
    prompts = write_prompts(tmp_path / "p.jsonl", 40)
    jobs = {
        name: write_job(
            tmp_path / f"{name}.yaml", standin.url, prompts, tmp_path / name, batch={"in_flight": 4}
        )
        for name in ("calm", "faulty")
    }
    calm = rawseq("run", str(jobs["calm"]))
    assert calm.status == 0, calm.stderr
    before = call(f"{standin.url}/standin/counters")["requests"]

    def torment() -> None:
        while call(f"{standin.url}/standin/counters")["requests"] < before + 12:  # the probe and some rows
            time.sleep(0.02)  # polling another process
        call(f"{standin.url}/standin/faults", FAULTS)

    tormenting = threading.Thread(target=torment, daemon=True)
    tormenting.start()
    faulty = rawseq("run", str(jobs["faulty"]))
    tormenting.join()
    assert faulty.status == 0, faulty.stderr
    assert faulty.answer["rows"] == calm.answer["rows"]
    assert shards(tmp_path / "faulty") == shards(tmp_path / "calm") != []
    assert set(call(f"{standin.url}/standin/counters")["faults"]) == set(FAULTS)
