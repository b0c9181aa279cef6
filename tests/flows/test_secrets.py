"""Secrets stay in a Secret block and in environment variables, nowhere else in Prefect or the dataset."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deployments.local.seaweed import start_seaweed
from deployments.standin.launch import running_standin_sync
from tests.conftest import free_port, prefect_server
from tests.support.jobs import write_job, write_prompts
from tests.support.prefect_api import RefusedError, ask

AUTH = "rawseq:auth-hunter2"
SERVER_KEY = "sglang-hunter2"
BUCKET_KEYS = {"aws_access_key_id": "AKhunter2", "aws_secret_access_key": "bucket-hunter2-secret"}
PLANTED = "planted-hunter2"
SECRETS = ("auth-hunter2", SERVER_KEY, *BUCKET_KEYS.values(), PLANTED)
LEAKING = f"""
import os
print("sglang serve --api-key {PLANTED} --admin_api_key={PLANTED} --port 30000")
print("ServerArgs(api_key='{PLANTED}', port=30000)", {{"hf_token": "{PLANTED}", "port": 30000}})
print("OPENAI_API_KEY={PLANTED}\\nAuthorization: Bearer {PLANTED}\\napi_key: {PLANTED}")
print("http://user:{PLANTED}@host:30000/x?key={PLANTED} wrong key:", os.environ["RAWSEQ_TEST_KEY"])
raise SystemExit(3)
"""
"""What restarts a server, fails, and says what it should not: in every spelling."""
SAVE = "import sys; from prefect.blocks.system import Secret; Secret(value=sys.argv[1]).save('s3')"
LISTS = (
    "flow_runs/filter",
    "task_runs/filter",
    "logs/filter",
    "artifacts/filter",
    "events/filter",
    "block_documents/filter",
    "deployments/filter",
)


def test_no_secret_is_in_prefect_or_the_dataset(tmp_path: Path) -> None:
    """One run with an API password, S3 keys in a block, a key for its server; then everything is searched."""
    port = free_port()
    api = f"http://127.0.0.1:{port}/api"
    home = tmp_path / "prefect"
    home.mkdir()
    env = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "PREFECT_"))} | {
        "PREFECT_HOME": str(tmp_path / "client"),
        "PREFECT_API_URL": api,
        "PREFECT_API_AUTH_STRING": AUTH,
        "RAWSEQ_TEST_KEY": SERVER_KEY,
    }
    with (
        prefect_server(home, port, PREFECT_SERVER_API_AUTH_STRING=AUTH),
        start_seaweed(tmp_path / "s3", bucket="rawseq", credentials=BUCKET_KEYS) as bucket,
        running_standin_sync(["--api-key", SERVER_KEY], tmp_path / "standin.log") as url,
        running_standin_sync(
            ["--api-key", SERVER_KEY, "--reasoning-parser", "kimi_k2"], tmp_path / "parsing.log"
        ) as parsing,
    ):
        job = write_job(
            tmp_path / "job.yaml",
            url,
            write_prompts(tmp_path / "p.jsonl", 6),
            "s3://rawseq/out",
            servers={"api_key_env": "RAWSEQ_TEST_KEY"},
            store={"credentials_block": "s3", "endpoint_url": bucket.http_url, "region": "us-east-1"},
        )
        (tmp_path / "leaking.py").write_text(LEAKING)
        refused_job = write_job(
            tmp_path / "refused.yaml",
            parsing,
            tmp_path / "p.jsonl",
            tmp_path / "refused",
            servers={
                "api_key_env": "RAWSEQ_TEST_KEY",
                "restart": "command",
                "restart_commands": {"restart": f"{sys.executable} {tmp_path / 'leaking.py'}"},
            },
        )
        said = ""
        for command, status in (
            (["-c", SAVE, json.dumps(BUCKET_KEYS)], 0),
            (["-m", "deployments.cli.main", "run", str(job), "--json"], 0),
            (["-m", "deployments.cli.main", "run", str(refused_job), "--json"], 5),
        ):
            done = subprocess.run(
                [sys.executable, *command], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240
            )
            assert done.returncode == status, done.stderr
            said += done.stdout + done.stderr
        with pytest.raises(RefusedError) as refused:
            ask(api, "flow_runs/filter", {})
        assert refused.value.status == 401
        answers = {path: json.dumps(ask(api, path, {}, auth=AUTH)) for path in LISTS}
    assert '"s3"' in answers["block_documents/filter"]
    assert "RAWSEQ_TEST_KEY" in answers["flow_runs/filter"], "the run's parameters were searched"
    assert "ended with status 3" in said
    assert "--port 30000" in said, "evidence stays"
    places = {"stdout and stderr": said.encode()} | {path: text.encode() for path, text in answers.items()}
    for folder in (
        home,
        Path(env["PREFECT_HOME"]),
        tmp_path / "journals",
        tmp_path / "refused",
        tmp_path / "s3" / "data",
    ):
        places |= {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert len([name for name in places if "prefect.db" in name])
    logs = [path for path in tmp_path.rglob("rawseq-commands-*.log") if PLANTED in path.read_text()]
    assert [path.stat().st_mode & 0o777 for path in logs] == [0o600]
    for path in logs:  # what a command says is kept as it came, for its owner alone
        places.pop(str(path), None)
    found = [(secret, name) for secret in SECRETS for name, text in places.items() if secret.encode() in text]
    assert not found
