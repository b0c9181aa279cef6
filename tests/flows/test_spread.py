"""One job in several flow runs, in processes of this machine; on a work pool: test_postgres.py."""

from pathlib import Path

from deployments.standin.launch import Standin
from tests.flows.counted import rows_in, shard_names
from tests.flows.prefect_reads import of_run, runs_of, until
from tests.jobs import Rawseq, opened, write_job, write_prompts


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
