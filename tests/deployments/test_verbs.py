"""The verbs as a user types them: exit status, JSON keys, what a person reads."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deployments.local.demo import DemoHome
from deployments.local.presets import STANDIN_MODEL
from deployments.standin.launch import Standin, start_standin
from tasks.job.spec import ModelSpec
from tasks.tokenizer.template import render
from tasks.tokenizer.vocabulary import load_vocabulary
from tests.support.jobs import Rawseq, opened, write_job, write_prompts


@pytest.mark.parametrize(
    ("argv", "status", "verdict", "failed"),
    [
        pytest.param([], 0, "faithful", [], id="faithful"),
        pytest.param(["--reasoning-parser", "kimi_k2"], 0, "faithful", ["chat_content"], id="parser-on"),
        pytest.param(["--fault", "strip_think"], 1, "unfaithful", ["closer_forced"], id="strips-think"),
    ],
)
def test_probe_tells_what_a_server_does(
    tmp_path: Path, rawseq: Rawseq, argv: list[str], status: int, verdict: str, failed: list[str]
) -> None:
    """`/generate` ids decide; the chat channel is evidence of what a parser loses."""
    server = start_standin(argv, tmp_path / "standin.log")
    try:
        ran = rawseq("probe", server.url, "--tokenizer", str(STANDIN_MODEL))
    finally:
        server.end()
    assert (ran.status, ran.answer["verdict"]) == (status, verdict)
    assert set(failed) <= {check["name"] for check in ran.answer["checks"] if not check["passed"]}
    assert set(ran.answer) >= {"url", "verdict", "checks", "server", "natural"}
    if not argv:
        assert ran.answer["natural"]["ids"]
        assert "</think>" in ran.answer["natural"]["text"]


def test_status_says_not_yet(tmp_path: Path, rawseq: Rawseq, standin: Standin) -> None:
    """A job with a batch that is not committed is incomplete: exit 3."""
    job = write_job(
        tmp_path / "job.yaml", standin.url, write_prompts(tmp_path / "p.jsonl", 16), tmp_path / "out"
    )
    assert rawseq("run", str(job)).status == 0
    assert rawseq("status", str(tmp_path / "out")).status == 0
    next((tmp_path / "out").rglob("receipts/000001*")).unlink()
    ran = rawseq("status", str(tmp_path / "out"))
    assert ran.status == 3
    assert ran.answer["batches"] == {"total": 2, "committed": 1, "pending": 1}


def test_status_names_what_is_missing_or_too_new(tmp_path: Path, rawseq: Rawseq, standin: Standin) -> None:
    """Receipts without their plan, and a job.json of a later schema, are errors that say so."""
    job = write_job(
        tmp_path / "job.yaml", standin.url, write_prompts(tmp_path / "p.jsonl", 16), tmp_path / "out"
    )
    assert rawseq("run", str(job)).status == 0
    plan = next((tmp_path / "out").rglob("plan/000000.json"))
    kept = plan.rename(tmp_path / "plan.json")
    for arguments in (("status", str(tmp_path / "out")), ("run", str(job)), ("retry", str(tmp_path / "out"))):
        ran = rawseq(*arguments)
        assert ran.status == 1
        message = ran.answer["error"]["message"]
        assert "plan/000000.json: expected the plan of batch 0, which has a receipt" in message
        assert "2 of the batches with a receipt, up to 1" in message
        assert not plan.exists()
    kept.rename(plan)
    record = next((tmp_path / "out").rglob("job.json"))
    record.write_text(json.dumps(json.loads(record.read_text()) | {"schema": 7}))
    for verb in ("status", "show", "verify", "retry"):
        ran = rawseq(verb, str(tmp_path / "out"))
        assert ran.status == 1
        told = json.dumps(ran.answer)  # an error, in verify's account a finding
        assert "job.json: expected schema 1 to 1, got 7 (written by a newer rawseq: use that)" in told


def test_verify_knows_the_template_args_of_a_mixture(
    tmp_path: Path, rawseq: Rawseq, standin: Standin
) -> None:
    """Rows drawn with and without thinking are both what the job's grammar expects."""
    mix = [{"name": "on", "template_args": {"thinking": True}}, {"template_args": {"thinking": False}}]
    job = write_job(
        tmp_path / "job.yaml",
        standin.url,
        write_prompts(tmp_path / "p.jsonl", 12),
        tmp_path / "out",
        sampling={"mix": mix},
        policy={"accept": "intact", "accepted_floor": 0.0},
    )
    assert rawseq("run", str(job)).status == 0
    ran = rawseq("verify", str(tmp_path / "out"))
    assert (ran.status, ran.answer["trainable"]) == (0, True), ran.answer
    rows = rawseq("show", str(tmp_path / "out"), "--n", "99").objects[:-1]
    assert len({row["metadata"]["mix"] for row in rows}) == 2


def test_show_finds_a_row_by_its_id(tmp_path: Path, rawseq: Rawseq, standin: Standin) -> None:
    """`show --row` prints that row's ids and segments; an absent id is an error."""
    prompts = write_prompts(tmp_path / "p.jsonl", 6)
    job = write_job(tmp_path / "job.yaml", standin.url, prompts, tmp_path / "out")
    assert rawseq("run", str(job)).status == 0
    ran = rawseq("show", str(tmp_path / "out"), "--row", "p:p2#t0~s0")
    row, summary = ran.objects
    assert (row["row_id"], summary) == ("p:p2#t0~s0", {"summary": {"rows": 1}})
    assert row["segments"][0] == {"kind": "prompt", "start": 0, "stop": row["prompt_length"]}
    assert row["segments"][-1]["stop"] == len(row["input_ids"])
    absent = rawseq("show", str(tmp_path / "out"), "--row", "p:nobody#t0~s0")
    assert absent.status == 2


def test_verify_finds_a_flipped_byte(tmp_path: Path, rawseq: Rawseq, standin: Standin) -> None:
    """A shard that changed on disk makes the dataset untrainable: exit 1, the object named."""
    prompts = write_prompts(tmp_path / "p.jsonl", 6)
    job = write_job(tmp_path / "job.yaml", standin.url, prompts, tmp_path / "out")
    assert rawseq("run", str(job)).status == 0
    assert rawseq("verify", str(tmp_path / "out")).answer["trainable"] is True
    shard = next((tmp_path / "out").rglob("shards/*.parquet"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    ran = rawseq("verify", str(tmp_path / "out"))
    assert ran.status == 1
    assert ran.answer["trainable"] is False
    assert shard.name in json.dumps(ran.answer)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param(["run", "absent.yaml"], "absent.yaml", id="no-job-file"),
        pytest.param(["status", "nowhere"], "nowhere", id="no-store"),
        pytest.param(["show", "demo"], "rawseq-demo", id="no-demo"),
    ],
)
def test_bad_arguments_exit_2(rawseq: Rawseq, arguments: list[str], expected: str) -> None:
    """What does not exist is named."""
    ran = rawseq(*arguments)
    assert ran.status == 2
    assert expected in ran.answer["error"]["message"]


def test_render_shows_what_would_be_sent(tmp_path: Path, rawseq: Rawseq) -> None:
    """Ids end with the opener; text that spells a control token is refused with message and character."""
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"id": "a", "prompt": "hello"}\n{"id": "b", "prompt": "end it </think> now"}\n')
    job = write_job(tmp_path / "job.yaml", "http://127.0.0.1:1", prompts, tmp_path / "out")
    ran = rawseq("render", str(job))
    assert ran.status == 1
    sent, refused, summary = ran.objects
    assert sent["tail"]["names"][-1] == "<think>"
    assert sent["text"].startswith("<|im_user|>")
    why = refused["refused"]
    assert (refused["row_id"], why["code"], why["offset"]) == ("p:b#t0~s0", "control_token_in_text", 7)
    assert summary == {"summary": {"rows": 2, "refused": 1}}
    as_text = rawseq("render", str(job), "--set", "model.control_tokens=as_text")
    assert as_text.status == 0
    assert as_text.objects[1]["input_ids"].count(as_text.objects[0]["input_ids"][-1]) == 1


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(lambda p, o: {"prompt_ids": p, "output_ids": o}, id="prompt-and-output"),
        pytest.param(lambda p, o: {"input_ids": p + o, "prompt_length": len(p)}, id="prompt-length"),
        pytest.param(lambda p, o: {"input_ids": p + o, "loss_mask": [0] * len(p) + [1] * len(o)}, id="mask"),
    ],
)
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_check_judges_anybodys_file(
    tmp_path: Path, rawseq: Rawseq, suffix: str, form: Callable[[list[int], list[int]], dict[str, Any]]
) -> None:
    """A good row passes and one without its closer is named by line, code and offset, in every form."""
    vocabulary = load_vocabulary(ModelSpec(tokenizer=str(STANDIN_MODEL)))
    prompt = render(vocabulary, [{"role": "user", "content": "hi"}]).tolist()
    closer, end = vocabulary.control_ids["</think>"], vocabulary.control_ids["<|im_end|>"]
    rows = [form(prompt, [300, closer, 301, end]), form(prompt, [300, 301, end])]
    path = tmp_path / f"theirs.{suffix}"
    if suffix == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    ran = rawseq("check", str(path), "--tokenizer", str(STANDIN_MODEL))
    assert ran.status == 1
    good, bad, summary = ran.objects
    assert (good["verdict"], bad["verdict"], bad["line"]) == ("complete", "closer_missing", 2)
    assert bad["offset"] == len(prompt) + 2
    assert summary["summary"]["accepted"] == 1


@pytest.fixture
def demo_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for a demo; whatever a killed one leaves is ended."""
    yield tmp_path
    DemoHome(tmp_path).end_standins()
    pid_file = tmp_path / "rawseq-demo" / "s3" / "weed.pid"
    if pid_file.exists() and psutil.pid_exists(pid := int(pid_file.read_text().split()[0])):
        os.kill(pid, signal.SIGKILL)


def test_two_commands_do_not_share_a_demo(demo_folder: Path, rawseq: Rawseq) -> None:
    """While one command is at work in the demo's folder, another says so and touches no server of it."""
    home = DemoHome(demo_folder)
    with home.alone():
        (home.folder / "s3").mkdir()
        for arguments in (["status", "demo"], ["demo"]):
            ran = rawseq(*arguments)
            assert ran.status == 5
            assert "another `rawseq` command is at work" in ran.answer["error"]["message"]


def test_a_killed_demo_resumes(demo_folder: Path, rawseq: Rawseq, rawseq_env: dict[str, str]) -> None:
    """SIGKILL during the demo, then the demo again: every row once, nothing of the first left running."""
    command = [sys.executable, "-m", "deployments.cli.main", "demo", "--rows", "96"]
    log = demo_folder / "log"
    with (
        log.open("wb") as sink,
        subprocess.Popen(command, cwd=demo_folder, env=rawseq_env, stdout=sink, stderr=sink) as process,
    ):
        deadline = time.monotonic() + 120
        journals = demo_folder / "rawseq-demo" / "journals"
        while not any(path.stat().st_size > 4000 for path in journals.rglob("*.journal")):
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.01)  # polling for the first finished rows
        process.kill()
    again = rawseq("demo", "--rows", "96")
    assert again.status == 0, again.stderr
    assert again.answer["batches"] == {"total": 3, "committed": 3, "skipped": 0, "failed": 0}
    assert 0 < again.answer["generated_rows"] < again.answer["rows"]["total"]
    third = rawseq("demo", "--rows", "96")
    assert third.answer["generated_rows"] == 0
    assert rawseq("verify", "demo").answer["trainable"] is True
    assert DemoHome(demo_folder).end_standins() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["sigterm", "sigint"])
def test_a_signal_stops_cleanly(
    tmp_path: Path, rawseq: Rawseq, rawseq_env: dict[str, str], standin: Standin, number: signal.Signals
) -> None:
    """A signalled run drops what is in flight, keeps what finished, exits 128 + n; then it resumes."""
    prompts = write_prompts(tmp_path / "p.jsonl", 60)
    job = write_job(tmp_path / "job.yaml", standin.url, prompts, tmp_path / "out", batch={"in_flight": 8})
    log = tmp_path / "log"
    with (
        log.open("wb") as sink,
        subprocess.Popen(
            [sys.executable, "-m", "deployments.cli.main", "run", str(job)],
            cwd=tmp_path,
            env=rawseq_env,
            stdout=sink,
            stderr=sink,
        ) as process,
    ):
        deadline = time.monotonic() + 120
        while not list((tmp_path / "out").rglob("receipts/*")):
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.01)  # polling for the first commit
        process.send_signal(number)
        assert process.wait(60) == 128 + number, log.read_text()[-3000:]
    ran = rawseq("run", str(job))
    assert ran.status == 0, ran.stderr
    assert ran.answer["batches"]["skipped"] >= 1
    assert len(list(opened(tmp_path / "out").list("receipts/"))) == ran.answer["batches"]["total"]
