"""Three workers that share nothing but the store, Prefect on PostgreSQL, and kills: one dataset all the same.

Every worker has its own home, temporary folder, journals and Prefect profile folder; they meet in a real S3
server and at the Prefect server's API only. `make test-postgres` runs it.
"""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from deployments.local.seaweed import Seaweed
from deployments.standin.launch import Standin
from tasks.dataset.shard_reader import decode_rejected, decode_shard
from tasks.errors import JobError
from tasks.job.spec import StoreSpec
from tasks.store.contract import MissingError, ObjectStore
from tasks.store.opening import find_job
from tests.flows.machines import SERVE, WAIT_SECONDS, kill, machine, ready, register, started, wait_for
from tests.flows.prefect_reads import log_lines, of_run, runs_of, until
from tests.support.jobs import Rawseq, write_job, write_prompts

WORKERS = 3
RECORDS, BATCH_ROWS = 96, 16


def half_done(store: ObjectStore) -> tuple[int, str] | None:
    """Return (batch, worker) of a batch with rows in the store that its worker has not committed."""
    for info in store.list("journals/"):
        batch = info.key.split("/")[1]
        leases = sorted(each.key for each in store.list(f"leases/{batch}/"))
        if info.size > 2000 and leases:
            try:
                return int(batch), str(json.loads(store.get(leases[-1]))["run"])
            except MissingError:  # committed this moment
                continue
    return None


def flow_run_of(process: psutil.Process) -> str:
    """Return the flow run that a process executes, "" for none."""
    try:
        return str(process.environ().get("PREFECT__FLOW_RUN_ID", ""))
    except psutil.Error:
        return ""


def rows_and_shards(store: ObjectStore) -> tuple[list[str], dict[int, str]]:
    """Return every row id of the counting receipts, and each batch's shard."""
    names: list[str] = []
    shards: dict[int, str] = {}
    for info in store.list("receipts/"):
        receipt = json.loads(store.get(info.key))
        if receipt["shard"]:
            shards[receipt["batch"]] = receipt["shard"]["sha256"]
            names += decode_shard(store.get(receipt["shard"]["key"])).row_ids
        if receipt["rejected"]:
            names += decode_rejected(store.get(receipt["rejected"]["key"])).row_ids
    return names, shards


def opened(uri: str, seaweed: Seaweed) -> ObjectStore:
    """Open the only job below an address, with the server's own keys."""
    spec = StoreSpec(uri=uri, endpoint_url=seaweed.http_url, region="us-east-1")
    return find_job(spec, credentials=seaweed.credentials)


@pytest.mark.postgres
@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_workers_die_and_the_dataset_is_the_same(
    tmp_path: Path, postgres_api: str, seaweed: Seaweed, standin: Standin, rawseq: Rawseq
) -> None:
    """SIGKILL of a worker mid-batch and of the run that hands out ranges: every row once, equal shards."""
    prompts = write_prompts(tmp_path / "p.jsonl", RECORDS)
    batch: dict[str, Any] = {"rows": BATCH_ROWS, "in_flight": 6, "journal_dir": None}
    batch |= {"journal_upload_seconds": 1.0, "lease_seconds": 15.0}
    job = write_job(tmp_path / "job.yaml", standin.url, prompts, "s3://rawseq/many", batch=batch)
    folders = [tmp_path / f"machine{number}" for number in range(WORKERS + 1)]
    environments = [machine(folder, postgres_api) | seaweed.environment() for folder in folders]
    register(environments[0])
    main = ["deployments.cli.main", "run", str(job), "--workers", str(WORKERS), "--json"]
    serve = [*SERVE, "--limit", "1"]
    with ExitStack() as stack:
        workers = [
            stack.enter_context(started([*serve, "--name", f"worker{number}"], folder, environment))
            for number, (folder, environment) in enumerate(zip(folders[1:], environments[1:], strict=True))
        ]
        wait_for("ready deployment", lambda: ready(postgres_api, "generate-range"))
        with started(main, folders[0], environments[0]) as parent:
            uri = wait_for("job.json", lambda: _store_uri(seaweed))
            store = opened(uri, seaweed)
            victim_batch, victim_run = wait_for("a half-done batch", lambda: half_done(store))
            dead = next(
                worker
                for worker in workers
                if any(flow_run_of(child) == victim_run for child in worker.children(recursive=True))
            )
            lost = {flow_run_of(child) for child in dead.children(recursive=True)} - {""}
            kill(dead)
            assert victim_batch not in _committed(store)
            kill(parent)
        with started(main, folders[0], environments[0]) as parent:
            assert parent.wait(WAIT_SECONDS) == 0, (folders[0] / "log").read_text()[-4000:]
        log = (folders[0] / "log").read_text()
        names, shards = rows_and_shards(store)
    answer = json.loads(log.splitlines()[-1])
    assert answer["batches"]["committed"] == answer["batches"]["total"] == RECORDS // BATCH_ROWS
    assert len(names) == len(set(names)) == RECORDS + RECORDS // 3
    quiet = write_job(
        tmp_path / "quiet.yaml", standin.url, prompts, tmp_path / "quiet", batch={"rows": BATCH_ROWS}
    )
    assert rawseq("run", str(quiet)).status == 0
    assert shards == _folder_shards(tmp_path / "quiet")
    _told(postgres_api, lost)


def _store_uri(seaweed: Seaweed) -> str | None:
    try:
        return str(opened("s3://rawseq/many", seaweed).uri)
    except JobError:  # not there yet
        return None


def _committed(store: ObjectStore) -> set[int]:
    return {int(info.key.split("/")[1].split(".")[0]) for info in store.list("receipts/")}


def _folder_shards(folder: Path) -> dict[int, str]:
    receipts = [json.loads(path.read_bytes()) for path in folder.rglob("receipts/*.json")]
    return {each["batch"]: each["shard"]["sha256"] for each in receipts if each["shard"]}


def _told(api: str, lost: set[str]) -> None:
    """The UI tells the same story: the dead worker's run is Crashed, another one went on with its rows."""
    runs = runs_of(api, "t")
    states = {run["id"]: run["state"]["name"] for run in runs if "start" in run["parameters"]}
    assert {states.pop(run) for run in lost} == {"Crashed"}
    assert set(states.values()) == {"Completed"}
    assert len(states) >= WORKERS
    until(lambda: any(_went_on(log_lines(api, run)) for run in states))
    mains = [run for run in runs if "workers" in run["parameters"]]
    assert mains[-1]["state"]["name"] == "Completed"
    until(lambda: "made by the deployment's work pool" in log_lines(api, mains[-1]["id"]))
    for run in runs:
        assert len(of_run(api, "task_runs", run["id"])) < 60
        assert len(json.dumps(run["parameters"])) < 4096


def _went_on(log: str) -> bool:
    """Whether a flow run found rows of a batch in a journal that another machine had left in the store."""
    told = [line for line in log.splitlines() if line.endswith("of them from the journal")]
    return any(", 0 of them" not in line for line in told)
