"""The main flow against a genuine SGLang that is started with its parser on."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tasks.sglang.restart.process import find_server, without_flags
from tests.contract.conftest import START_SECONDS
from tests.support.jobs import write_job, write_prompts

RECORDS = 9
ROWS = RECORDS + RECORDS // 3
"""Every third record has two turns."""

FLOW_SECONDS = START_SECONDS + 600.0


def rawseq(env: dict[str, str], cwd: Path, *arguments: str) -> dict[str, Any]:
    """Run `rawseq ARGUMENTS --json`; it must end with status 0."""
    done = subprocess.run(
        [sys.executable, "-m", "deployments.cli.main", *arguments, "--json"],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=FLOW_SECONDS,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return dict(json.loads(done.stdout.splitlines()[-1])) | {"stderr": done.stderr}


@pytest.mark.sglang
@pytest.mark.skipif("RAWSEQ_SGLANG_PYTHON" not in os.environ, reason="restarts the server: only one of ours")
@pytest.mark.timeout(START_SECONDS + FLOW_SECONDS + 120)
def test_a_genuine_server_is_restarted_and_used(
    genuine_url: str, tmp_path: Path, rawseq_env: dict[str, str]
) -> None:
    """Parser found, taken off, probed faithful; every row made and committed; the dataset verifies."""
    before = find_server(genuine_url)
    job = write_job(
        tmp_path / "job.yaml",
        genuine_url,
        write_prompts(tmp_path / "p.jsonl", RECORDS),
        tmp_path / "out",
        servers={"restart": "local", "ready_timeout_seconds": START_SECONDS},
        sampling={"max_new_tokens": 128, "logprobs_share": 0.5},
        batch={"rows": 4},
    )
    ran = rawseq(rawseq_env, tmp_path, "run", str(job))
    assert ran["state"] == "complete"
    assert ran["batches"] == {"total": 3, "committed": 3, "skipped": 0, "failed": 0}
    assert ran["rows"]["total"] == ROWS
    assert "restarted without --reasoning-parser" in ran["stderr"]
    assert "faithful · SGLang 0.5" in ran["stderr"]
    after = find_server(genuine_url)
    assert after.pid != before.pid
    assert after.argv == without_flags(before.argv) != before.argv
    assert (after.env, after.cwd) == (before.env, before.cwd)
    verified = rawseq(rawseq_env, tmp_path, "verify", str(tmp_path / "out"), "--rescore", genuine_url)
    assert (verified["trainable"], verified["orphans"]) == (True, [])
    assert verified["checks"][-1]["name"] == "rescored"
    assert verified["checks"][-1]["checked"] > 2 * verified["rows"]["accepted"]
    made = [path for path in (tmp_path / "out").rglob("provenance/*") if path.is_file()]
    served = [row for path in made for row in pq.read_table(path).to_pylist()]
    assert len(served) == ROWS
    assert genuine_url in json.dumps(served, default=str)
    print({key: ran[key] for key in ("rows", "tokens", "seconds")}, f"pid {before.pid} → {after.pid}")
