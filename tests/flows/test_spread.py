"""One job in several flow runs, in processes of this machine; on a work pool: test_postgres.py."""

import json
import shlex
import shutil
from pathlib import Path

from deployments.local.seaweed import start_seaweed
from deployments.standin.launch import Standin
from tests.conftest import free_port
from tests.flows.counted import rows_in, shard_names
from tests.flows.prefect_reads import log_lines, of_run, runs_of, until
from tests.support.fault_proxy import Fault, FaultProxy
from tests.support.jobs import Rawseq, opened, write_job, write_prompts


def test_two_workers_make_the_dataset_of_one(
    tmp_path: Path, rawseq: Rawseq, standin: Standin, prefect_api: str
) -> None:
    """Ranges in two processes: every row once, the same shards as one run makes, three flow runs to see."""
    prompts = write_prompts(tmp_path / "p.jsonl", 24)
    batch = {"rows": 12, "in_flight": 8}
    many = write_job(tmp_path / "many.yaml", standin.url, prompts, tmp_path / "many", batch=batch)
    one = write_job(tmp_path / "one.yaml", standin.url, prompts, tmp_path / "one", batch=batch)
    ran = rawseq("run", str(many), "--set", "name=spread", "--workers", "2")
    assert ran.status == 0, ran.stderr
    assert ran.answer["batches"] == {"total": 2, "committed": 2, "skipped": 0, "failed": 0}
    assert len(rows_in(opened(tmp_path / "many"))) == ran.answer["generated_rows"] == 24 + 8
    runs = {run["name"]: run for run in runs_of(prefect_api, "spread")}
    assert sorted(runs) == ["spread", "spread batches [0,1)", "spread batches [1,2)"]
    assert {run["state"]["name"] for run in runs.values()} == {"Completed"}
    ranges = [run for name, run in runs.items() if "batches" in name]
    assert {run["parameters"]["sharers"] for run in ranges} == {2}
    links, main = {run["parent_task_run_id"] for run in ranges}, runs["spread"]["id"]
    until(lambda: links < {step["id"] for step in of_run(prefect_api, "task_runs", main)})  # on its page
    assert rawseq("run", str(one), "--set", "name=spread").status == 0
    assert shard_names(opened(tmp_path / "many")) == shard_names(opened(tmp_path / "one"))


def test_a_failed_batch_of_a_range_is_told_by_the_whole(
    tmp_path: Path, rawseq: Rawseq, standin: Standin, prefect_api: str
) -> None:
    """The table of the run that handed ranges out has its reason, its log and the command that mends it."""
    refused = Fault("error", path="receipts/000001", times=10**6, code="InternalError", status=500)
    with (
        start_seaweed(tmp_path / "s3", bucket="rawseq") as seaweed,
        FaultProxy(seaweed.port, refused) as proxy,
    ):
        env = seaweed.environment() | {"AWS_ENDPOINT_URL_S3": proxy.url}
        prompts = write_prompts(tmp_path / "p.jsonl", 24)
        store = {"uri": "s3://rawseq/failed", "deadline_seconds": 2.0}
        job = write_job(tmp_path / "job.yaml", standin.url, prompts, store["uri"], store=store)
        ran = rawseq("run", str(job), "--set", "name=part-fails", "--workers", "2", env=env)
        assert ran.status == 1, ran.stderr
        assert ran.answer["batches"] == {"total": 3, "committed": 2, "skipped": 0, "failed": 1}
        runs = {run["name"]: run for run in runs_of(prefect_api, "part-fails")}
        part, whole = runs["part-fails batches [1,2)"], runs["part-fails"]
        assert part["state"]["name"] == "Incomplete"
        assert whole["state"]["message"].startswith("1 of 3 batches are not committed: 1;")
        tables = of_run(prefect_api, "artifacts", whole["id"])
        (failed,) = [table for table in tables if (table["key"] or "").startswith("failed-part-fails")]
        (row,) = json.loads(failed["data"])
        assert (row["batch"], row["state"]) == (1, "failed")
        assert "receipts/000001" in row["reason"]
        assert row["log"].endswith(f"/runs/flow-run/{part['id']}")
        until(lambda: "batch 000001 [8,16) failed: " in log_lines(prefect_api, part["id"]))
        words = failed["description"].splitlines()
        (command,) = [line.strip() for line in words if line.strip().startswith("rawseq retry")]
        assert command.endswith("--batches 1")
        refused.times = 0
        again = rawseq(*shlex.split(command)[1:], env=env)
        assert again.status == 0, again.stderr
        assert again.answer["batches"]["committed"] == 3


def test_work_again_is_spread_too(tmp_path: Path, rawseq: Rawseq, standin: Standin, prefect_api: str) -> None:
    """Rejected rows, then cut ones, made again in two processes: the same shards and counts as in one."""
    job = write_job(
        tmp_path / "job.yaml",
        standin.url,
        write_prompts(tmp_path / "p.jsonl", 16),
        tmp_path / "out",
        sampling={"max_new_tokens": 24, "temperature": 1.0},
        policy={"on_length": "reject", "accepted_floor": 0.0},
    )
    codes = {"cut_in_reasoning", "cut_in_content"}
    assert rawseq("run", str(job), "--set", "name=anew").status == 0
    shutil.copytree(tmp_path / "out", tmp_path / "one")
    retry = [*(f"--rejected={code}" for code in sorted(codes)), "--batches=0,1"]
    spread = rawseq("retry", str(tmp_path / "out"), *retry, "--workers", "2")
    alone = rawseq("retry", str(tmp_path / "one"), *retry)
    assert (spread.status, alone.status) == (0, 0), spread.stderr
    assert spread.answer["generated_rows"] == alone.answer["generated_rows"] > 0
    assert shard_names(opened(tmp_path / "out")) == shard_names(opened(tmp_path / "one"))
    cut = sum(count for code, count in spread.answer["rows"]["by_verdict"].items() if code in codes)
    more = rawseq("continue", str(tmp_path / "out"), "--max-new-tokens=8", "--workers", "2")
    assert more.status == 0, more.stderr
    assert more.answer["generated_rows"] >= cut > 0
    assert len(rows_in(opened(tmp_path / "out"))) == 16 + 5
    ranges = [run["parameters"] for run in runs_of(prefect_api, "anew") if "start" in run["parameters"]]
    made = [each["again"] for each in ranges]
    assert len([each for each in made if each["more"] == 0]) > 1
    assert len([each for each in made if each["more"] == 8]) > 1
    assert len(list((tmp_path / "out").rglob("receipts/*.g2.json"))) > 1


def test_what_ends_a_range_ends_the_whole_with_its_own_status(tmp_path: Path, rawseq: Rawseq) -> None:
    """No server answers: the documented exit status, with the range and the server named."""
    url = f"http://127.0.0.1:{free_port()}"
    job = write_job(
        tmp_path / "job.yaml",
        url,
        write_prompts(tmp_path / "p.jsonl", 16),
        tmp_path / "out",
        servers={"ready_timeout_seconds": 1},
    )
    ran = rawseq("run", str(job), "--workers", "2")
    assert ran.status == 5, ran.stderr
    told = ran.stderr.strip().splitlines()[-1]
    assert told.startswith("SurroundingsError: batches [")
    assert url in told
