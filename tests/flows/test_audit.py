"""An audit that is stopped, as Cancel in the UI and a worker's end do it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from deployments.local.seaweed import start_seaweed
from deployments.standin.launch import ROOT, Standin
from tests.flows.prefect_reads import ask, until
from tests.support.fault_proxy import Fault, FaultProxy
from tests.support.jobs import Rawseq, write_job, write_prompts

BATCHES = 40
AHEAD = 9
"""Batches whose files the audit may have asked for already."""

RUN = """
import asyncio, sys
from flows.audit import audit_dataset
from tasks.job.spec import StoreSpec
asyncio.run(audit_dataset(StoreSpec(uri=sys.argv[1]), return_state=True))
"""


def test_a_stopped_audit_reads_no_further(
    tmp_path: Path, rawseq: Rawseq, rawseq_env: dict[str, str], standin: Standin, prefect_api: str
) -> None:
    """SIGTERM while a slow store is read: the process ends before most of the shards, the run as Crashed."""
    slow = Fault("slow", method="GET", path="shards/", times=10**6, code="1.0")
    with start_seaweed(tmp_path / "s3", bucket="rawseq") as seaweed, FaultProxy(seaweed.port, slow) as proxy:
        prompts = write_prompts(tmp_path / "p.jsonl", BATCHES)
        job = write_job(tmp_path / "job.yaml", standin.url, prompts, "s3://rawseq/audited", batch={"rows": 1})
        assert rawseq("run", str(job), env=seaweed.environment()).status == 0
        env = rawseq_env | seaweed.environment() | {"AWS_ENDPOINT_URL_S3": proxy.url}
        log = tmp_path / "log"
        with log.open("wb") as sink:
            command = [sys.executable, "-c", RUN, "s3://rawseq/audited"]
            process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=sink, stderr=sink)

        def shards_read() -> int:
            return len({line for line in list(proxy.seen) if "shards/" in line})

        deadline = time.monotonic() + 240
        while not shards_read():
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.05)  # polling what another process asks the store for
        before = shards_read()
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(240) != 0
        assert shards_read() <= before + AHEAD < BATCHES

    def state() -> str:
        runs = ask(prefect_api, "flow_runs/filter", {"flows": {"name": {"any_": ["audit-dataset"]}}})
        (run,) = [each for each in runs if each["parameters"]["store"]["uri"] == "s3://rawseq/audited"]
        return str(run["state"]["type"])

    until(lambda: state() == "CRASHED")
