"""The main flow against a genuine SGLang that is started with its parser on."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tasks.errors import SurroundingsError
from tasks.serving.process import find_server, without_flags
from tasks.serving.stop import stop_server
from tests.contract.conftest import FLAGS, START_SECONDS, end_group, start_genuine, wait_until_ready
from tests.jobs import write_job, write_prompts

RECORDS = 9
ROWS = RECORDS + RECORDS // 3
"""Every third record has two turns."""

FLOW_SECONDS = START_SECONDS + 600.0


@pytest.fixture
def own_genuine(tmp_path: Path) -> Iterator[str]:
    """A genuine server of this test's own, parser on; ended with whatever was started in its place."""
    process, url = start_genuine(os.environ["RAWSEQ_SGLANG_PYTHON"], tmp_path, FLAGS)
    try:
        wait_until_ready(url, process, tmp_path / "log")
        yield url
    finally:
        with suppress(SurroundingsError):
            asyncio.run(stop_server(find_server(url), 5.0))
        if process.poll() is None:
            end_group(process)


def rawseq(env: dict[str, str], cwd: Path, *arguments: str) -> dict[str, Any]:
    """Run `rawseq ARGUMENTS --json`; it must end with status 0."""
    done = subprocess.run(
        [sys.executable, "-m", "deployments.main", *arguments, "--json"],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=FLOW_SECONDS,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return dict(json.loads(done.stdout.splitlines()[-1])) | {"stderr": done.stderr}


@pytest.mark.sglang
@pytest.mark.skipif(
    "RAWSEQ_SGLANG_PYTHON" not in os.environ, reason="restarts the server: only one of its own"
)
@pytest.mark.timeout(START_SECONDS + FLOW_SECONDS + 120)
def test_a_genuine_server_is_restarted_and_used(
    own_genuine: str, tmp_path: Path, rawseq_env: dict[str, str]
) -> None:
    """Parser found, taken off, probed faithful; every row made and committed; the dataset verifies."""
    before = find_server(own_genuine)
    job = write_job(
        tmp_path / "job.yaml",
        own_genuine,
        write_prompts(tmp_path / "p.jsonl", RECORDS),
        tmp_path / "out",
        servers={"restart": "local", "ready_timeout_seconds": START_SECONDS},
        sampling={"max_new_tokens": 128},
        batch={"rows": 4},
    )
    ran = rawseq(rawseq_env, tmp_path, "run", str(job))
    assert ran["state"] == "complete"
    assert ran["batches"] == {"total": 3, "committed": 3, "skipped": 0, "failed": 0}
    assert ran["rows"]["total"] == ROWS
    assert "restarted without --reasoning-parser" in ran["stderr"]
    assert "faithful · SGLang 0.5" in ran["stderr"]
    after = find_server(own_genuine)
    assert after.pid != before.pid
    assert after.argv == without_flags(before.argv) != before.argv
    assert (after.env, after.cwd) == (before.env, before.cwd)
    verified = rawseq(rawseq_env, tmp_path, "verify", str(tmp_path / "out"))
    assert (verified["trainable"], verified["orphans"]) == (True, [])
    made = [path for path in (tmp_path / "out").rglob("provenance/*") if path.is_file()]
    served = [row for path in made for row in pq.read_table(path).to_pylist()]
    assert len(served) == ROWS
    assert own_genuine in json.dumps(served, default=str)
    print({key: ran[key] for key in ("rows", "tokens", "seconds")}, f"pid {before.pid} → {after.pid}")
