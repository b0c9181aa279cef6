"""Bad input and bad surroundings: each ends with a message that names the place, expected and got."""

import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deployments.presets import STANDIN_MODEL
from deployments.seaweed import Seaweed, start_seaweed
from deployments.standin.launch import Standin
from tests.conftest import free_port
from tests.jobs import Rawseq, write_job, write_prompts

GOOD = '{"id": "a", "prompt": "hi"}\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(GOOD + '{"id": "b", "prompt": \n', ["p.jsonl:2"], id="torn-json"),
        pytest.param(GOOD + '{"id": "b", "text": "hi"}\n', ["p.jsonl:2", "prompt"], id="no-prompt-field"),
        pytest.param(
            GOOD + '{"id": "b", "prompt": 7}\n', ["p.jsonl:2", "prompt", "7"], id="prompt-is-number"
        ),
        pytest.param(GOOD + GOOD, ["p.jsonl:2", "p.jsonl:1"], id="duplicate-id"),
        pytest.param("", ["p.jsonl", "empty"], id="empty-file"),
    ],
)
def test_a_bad_prompt_file_stops_before_generation(
    tmp_path: Path, rawseq: Rawseq, text: str, expected: list[str]
) -> None:
    """Exit 2 with file and line; no server is asked (none runs here) and nothing is planned."""
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(text)
    job = write_job(tmp_path / "job.yaml", f"http://127.0.0.1:{free_port()}", prompts, tmp_path / "out")
    ran = rawseq("run", str(job))
    assert ran.status == 2, ran.stderr
    assert ran.answer["error"]["type"] == "SourceError"
    for part in expected:
        assert part in ran.answer["error"]["message"]
    assert not list((tmp_path / "out").rglob("plan/*"))


def test_a_bad_record_can_be_recorded_instead(tmp_path: Path, rawseq: Rawseq, standin: Standin) -> None:
    """`prompts.on_bad_row: reject` keeps the record as a rejected row; rows in = accepted + rejected."""
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(GOOD + '{"id": "b", "prompt": 7}\n')
    job = write_job(
        tmp_path / "job.yaml", standin.url, prompts, tmp_path / "out", prompts={"on_bad_row": "reject"}
    )
    ran = rawseq("run", str(job))
    assert ran.status == 0, ran.stderr
    assert ran.answer["rows"]["total"] == 2
    assert ran.answer["rows"]["by_verdict"]["bad_record"] == 1


def test_a_server_that_is_down_is_named(tmp_path: Path, rawseq: Rawseq) -> None:
    """After the time limit the error names the URL and how long it was waited for. Exit 5."""
    url = f"http://127.0.0.1:{free_port()}"
    job = write_job(
        tmp_path / "job.yaml",
        url,
        write_prompts(tmp_path / "p.jsonl", 2),
        tmp_path / "out",
        servers={"ready_timeout_seconds": 2.0},
    )
    ran = rawseq("run", str(job))
    assert ran.status == 5, ran.stderr
    assert url in ran.answer["error"]["message"]
    assert "for 2 s" in ran.answer["error"]["message"]


def test_an_unknown_tokenizer_is_named(tmp_path: Path, rawseq: Rawseq) -> None:
    """A folder without a tokenizer is refused by its name. Exit 2."""
    job = write_job(
        tmp_path / "job.yaml",
        "http://127.0.0.1:1",
        write_prompts(tmp_path / "p.jsonl", 2),
        tmp_path / "out",
        model={"tokenizer": str(tmp_path / "absent-model")},
    )
    ran = rawseq("run", str(job))
    assert ran.status == 2, ran.stderr
    assert ran.answer["error"]["type"] == "TokenizerError"
    assert "absent-model" in ran.answer["error"]["message"]


def test_a_job_that_resolves_differently_is_refused(tmp_path: Path, rawseq: Rawseq, standin: Standin) -> None:
    """The same job over a changed template stops and shows both hashes. Exit 2."""
    model = tmp_path / "model"
    shutil.copytree(STANDIN_MODEL, model)
    job = write_job(
        tmp_path / "job.yaml",
        standin.url,
        write_prompts(tmp_path / "p.jsonl", 2),
        tmp_path / "out",
        model={"tokenizer": str(model)},
    )
    assert rawseq("run", str(job)).status == 0
    template = model / "chat_template.jinja"
    template.write_text(template.read_text() + "{# changed #}")
    ran = rawseq("run", str(job))
    assert ran.status == 2, ran.stderr
    assert ran.answer["error"]["type"] == "IdentityError"
    assert "template_sha256" in ran.answer["error"]["message"]
    assert "stored" in ran.answer["error"]["message"]


@pytest.fixture(scope="module")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """A real S3 server with one bucket."""
    with start_seaweed(tmp_path_factory.mktemp("s3"), bucket="rawseq") as server:
        yield server


def _keys(**changed: str) -> Callable[[Seaweed], dict[str, str]]:
    return lambda server: server.environment() | changed


@pytest.mark.parametrize(
    ("uri", "environment", "expected"),
    [
        pytest.param("s3://absent-bucket/x", _keys(), ["absent-bucket"], id="bucket-missing"),
        pytest.param(
            "s3://rawseq/x", _keys(AWS_SECRET_ACCESS_KEY="wrong"), ["credentials"], id="wrong-secret"
        ),
    ],
)
def test_a_store_that_refuses_is_named(
    tmp_path: Path,
    rawseq: Rawseq,
    seaweed: Seaweed,
    uri: str,
    environment: Callable[[Seaweed], dict[str, str]],
    expected: list[str],
) -> None:
    """A missing bucket and wrong keys each end with exit 5, say what to do, and show no secret."""
    env = environment(seaweed)
    job = write_job(tmp_path / "job.yaml", "http://127.0.0.1:1", write_prompts(tmp_path / "p.jsonl", 2), uri)
    ran = rawseq("run", str(job), env=env)
    assert ran.status == 5, ran.stderr
    for part in expected:
        assert part in ran.answer["error"]["message"]
    for secret in (env["AWS_SECRET_ACCESS_KEY"], seaweed.environment()["AWS_SECRET_ACCESS_KEY"]):
        assert secret not in ran.stderr + json.dumps(ran.answer)


def test_the_flow_writes_to_a_real_s3_server(
    tmp_path: Path, rawseq: Rawseq, seaweed: Seaweed, standin: Standin
) -> None:
    """The same flow commits to S3, says complete there, and does nothing the second time."""
    job = write_job(
        tmp_path / "job.yaml", standin.url, write_prompts(tmp_path / "p.jsonl", 9), "s3://rawseq/real"
    )
    env = seaweed.environment()
    ran = rawseq("run", str(job), env=env)
    assert ran.status == 0, ran.stderr
    store: dict[str, Any] = ran.answer
    assert rawseq("status", store["store"], env=env).status == 0
    assert rawseq("verify", store["store"], env=env).answer["trainable"] is True
    assert rawseq("run", str(job), env=env).answer["generated_rows"] == 0


def test_a_full_disk_stops_the_run_and_it_resumes(
    tmp_path: Path, rawseq_env: dict[str, str], rawseq: Rawseq, standin: Standin
) -> None:
    """When the journal cannot grow the run ends with exit 5 and what to do; with room again it goes on.

    The limit is the process's largest file (RLIMIT_FSIZE), above the store probe's 70 kB: the write fails as
    on a full disk, without root.
    """
    job = write_job(
        tmp_path / "job.yaml",
        standin.url,
        write_prompts(tmp_path / "p.jsonl", 160),
        tmp_path / "out",
        batch={"rows": 160},
    )
    done = subprocess.run(
        [sys.executable, "-m", "deployments.main", "run", str(job), "--json"],
        cwd=tmp_path,
        env=rawseq_env,
        capture_output=True,
        text=True,
        timeout=200,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (76_000, 76_000)),
    )
    assert done.returncode == 5, done.stderr
    error = json.loads(done.stdout.splitlines()[-1])["error"]
    assert error["type"] == "SurroundingsError"
    assert "journals" in error["message"]
    assert not list((tmp_path / "out").rglob("receipts/*"))
    ran = rawseq("run", str(job))
    assert ran.status == 0, ran.stderr
    assert 0 < ran.answer["generated_rows"] < ran.answer["rows"]["total"]
    assert rawseq("verify", str(tmp_path / "out")).answer["trainable"] is True
