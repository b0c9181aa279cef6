"""Every run ends with a report that the UI links; `rawseq publish` writes one for a partial dataset."""

import json
from pathlib import Path

import httpx

from deployments.standin.launch import Standin
from tests.support.jobs import Rawseq, opened, write_job, write_prompts


def test_a_run_publishes_and_an_unfinished_job_can(
    tmp_path: Path, rawseq: Rawseq, standin: Standin, prefect_api: str
) -> None:
    """The run's artifact names the page; provenance names the server; with a receipt gone it is partial."""
    prompts = write_prompts(tmp_path / "p.jsonl", 16)
    job = write_job(tmp_path / "job.yaml", standin.url, prompts, tmp_path / "out")
    assert rawseq("run", str(job)).status == 0
    store = opened(tmp_path / "out")
    report = f"{store.uri}/report.html"
    only = {"artifacts": {"key": {"like_": "report"}, "type": {"any_": ["markdown"]}}}
    answer = httpx.post(f"{prefect_api}/artifacts/filter", json=only, timeout=60)
    assert any(report in artifact["data"] for artifact in answer.json())
    index = json.loads(store.get("dataset.json"))
    (server,) = index["provenance"]["servers"]
    assert server["url"] == standin.url
    assert server["version"]
    assert server["flags"]
    assert standin.url in store.get("report.html").decode()

    next((tmp_path / "out").rglob("receipts/000001*")).unlink()
    ran = rawseq("publish", str(tmp_path / "out"), "--out", "copy")
    assert (ran.status, ran.answer["complete"], ran.answer["report"]) == (0, False, report)
    assert ran.answer["batches"]["committed"] == 1
    assert ran.answer["retokenized"]["rows"] == ran.answer["rows"]["accepted"]
    assert json.loads(store.get("dataset.json"))["batches"] == {"total": 2, "committed": 1}
    assert "Not complete" in store.get("report.html").decode()
    assert (tmp_path / "copy" / "report.html").read_bytes() == store.get("report.html")
