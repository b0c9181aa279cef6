"""One job in many flow runs: who gets which batches, who starts when, and what comes of it."""

from pathlib import Path

from deployments.standin.launch import Standin
from tests.flows.test_kill import rows_in, shard_names
from tests.jobs import Rawseq, write_job, write_prompts


def test_three_workers_make_the_dataset_of_one(tmp_path: Path, rawseq: Rawseq, standin: Standin) -> None:
    """Ranges in three processes: every row once, the same shards as one run makes."""
    prompts = write_prompts(tmp_path / "p.jsonl", 48)
    many = write_job(tmp_path / "many.yaml", standin.url, prompts, tmp_path / "many", batch={"rows": 4})
    one = write_job(tmp_path / "one.yaml", standin.url, prompts, tmp_path / "one", batch={"rows": 4})
    ran = rawseq("run", str(many), "--workers", "3")
    assert ran.status == 0, ran.stderr
    assert ran.answer["batches"] == {"total": 12, "committed": 12, "skipped": 0, "failed": 0}
    print(ran.stderr[-6000:])
    assert rawseq("run", str(one)).status == 0
    assert shard_names(tmp_path / "many") == shard_names(tmp_path / "one")
    names = rows_in(tmp_path / "many")
    assert len(names) == len(set(names)) == ran.answer["generated_rows"]
