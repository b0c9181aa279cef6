"""A batch that fails: the others go on, the UI shows it with its reason, and says how to make it again."""

import json
import shlex
import urllib.parse
from pathlib import Path
from typing import Any

import pytest

from deployments.local.seaweed import start_seaweed
from deployments.standin.launch import Standin
from tests.flows.prefect_reads import ask, log_lines, of_run, runs_of, until
from tests.support.fault_proxy import Fault, FaultProxy
from tests.support.jobs import Rawseq, write_job, write_prompts

LARGEST_PARAMETERS = 4096
"""Bytes of JSON that a flow or task run may carry: a job with its defaults, never prompts or tokens."""


@pytest.fixture
def retry_deployment(prefect_api: str) -> str:
    """Register retry-batches as a deployment without schedule; return its id."""
    flow = ask(prefect_api, "flows/", {"name": "retry-batches"})
    made = ask(prefect_api, "deployments/", {"name": "retry-batches", "flow_id": flow["id"]})
    return str(made["id"])


def test_one_batch_fails_and_is_made_again(
    tmp_path: Path, rawseq: Rawseq, standin: Standin, prefect_api: str, retry_deployment: str
) -> None:
    """The store refuses one receipt for ever: that batch alone fails, and the shown command mends it."""
    receipts = Fault("error", path="receipts/000001", times=10**6, code="InternalError", status=500)
    with (
        start_seaweed(tmp_path / "s3", bucket="rawseq") as seaweed,
        FaultProxy(seaweed.port, receipts) as proxy,
    ):
        env = seaweed.environment() | {"AWS_ENDPOINT_URL_S3": proxy.url}
        prompts = write_prompts(tmp_path / "p.jsonl", 24)
        job = write_job(
            tmp_path / "job.yaml",
            standin.url,
            prompts,
            "s3://rawseq/failed",
            store={"uri": "s3://rawseq/failed", "deadline_seconds": 2.0},
        )
        name = ["--set", "name=one-fails"]
        ran = rawseq("run", str(job), *name, env=env)
        assert ran.status == 1, ran.stderr
        assert ran.answer["batches"] == {"total": 3, "committed": 2, "skipped": 0, "failed": 1}
        (run,) = runs_of(prefect_api, "one-fails")
        assert (run["state"]["name"], run["state"]["message"]) == (
            "Failed",
            "1 of 3 batches are not committed: 1; 0 of 3 batches were committed before",
        )
        _shown_by_steps(prefect_api, run["id"])
        command = _shown_in_table(prefect_api, run["id"], retry_deployment)
        _shown_live(prefect_api, run["id"])
        _small(prefect_api, run["id"])
        receipts.times = 0
        again = rawseq(*shlex.split(command)[1:], env=env)
        assert again.status == 0, again.stderr
        assert again.answer["batches"]["committed"] == 3
        assert again.answer["generated_rows"] == 0  # its rows lie in the journal


def _shown_by_steps(api: str, run: str) -> None:
    """The failed step has its state and the store's answer; the steps of the others are Completed."""
    ends = {
        "commit_batch 000000 [0,8)": "Completed",
        "commit_batch 000001 [8,16)": "Failed",
        "commit_batch 000002 [16,24)": "Completed",
    }

    def steps() -> dict[str, dict[str, Any]]:
        return {step["name"]: step["state"] for step in of_run(api, "task_runs", run)}

    until(lambda: ends.items() <= {name: state["name"] for name, state in steps().items()}.items())
    assert "receipts/000001" in steps()["commit_batch 000001 [8,16)"]["message"]
    until(lambda: "batch 000001 [8,16) failed: " in log_lines(api, run))


def _shown_in_table(api: str, run: str, deployment: str) -> str:
    """The table lists the batch with reason and log; return the command that stands over it."""
    tables = of_run(api, "artifacts", run)
    (failed,) = [table for table in tables if (table["key"] or "").startswith("failed-one-fails")]
    (row,) = json.loads(failed["data"])
    assert (row["batch"], row["state"]) == (1, "failed")
    assert "receipts/000001" in row["reason"]
    assert row["log"].endswith(f"/runs/flow-run/{run}")
    words = failed["description"]
    (command,) = [line.strip() for line in words.splitlines() if line.strip().startswith("rawseq retry")]
    assert command.endswith("--batches 1")
    link = urllib.parse.urlsplit(words.split("](")[1].rstrip(")"))
    assert link.path == f"/v2/deployments/deployment/{deployment}/run"
    filled = json.loads(urllib.parse.parse_qs(link.query)["parameters"][0])
    assert (filled["batches"], filled["job"]["name"]) == ([1], "one-fails")
    return command


def _shown_live(api: str, run: str) -> None:
    """Progress, batches and servers are one artifact each, changed in place."""
    live = [each for each in of_run(api, "artifacts", run) if each["key"] is None]
    shown: dict[str, Any] = {each["description"]: each for each in live if each["type"] == "table"}
    assert sorted(shown) == ["Batches", "Servers"]
    batches = {row["batch"]: row for row in json.loads(shown["Batches"]["data"])}
    assert [batches[name]["state"] for name in sorted(batches)] == ["committed", "failed", "committed"]
    (server,) = json.loads(shown["Servers"]["data"])
    assert (server["state"], server["evictions"]) == ("open", 0)
    assert server["finished"] > 24
    assert {"running", "waiting", "in_flight", "limit", "tokens/s"} <= set(server)
    (progress,) = [each for each in live if each["type"] == "progress"]
    assert "tokens/s" in progress["description"]


def _small(api: str, run: str) -> None:
    """Neither parameters nor results carry prompts or tokens: a job's fields, and nothing else."""
    whole = ask(api, f"flow_runs/{run}")
    assert len(json.dumps(whole["parameters"])) < LARGEST_PARAMETERS
    for step in of_run(api, "task_runs", run):
        assert len(json.dumps(step["task_inputs"])) < 512
        assert step["state"].get("data") is None or len(json.dumps(step["state"]["data"])) < 512
    assert len(json.dumps(whole["state"])) < 1024
