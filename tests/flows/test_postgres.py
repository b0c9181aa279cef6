"""Three workers that share nothing but the store, Prefect on PostgreSQL, and kills: one dataset all the same.

Every worker has its own home, temporary folder, journals and Prefect profile folder; they meet in a real S3
server and at the Prefect server's API only. `make test-postgres` runs it.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from deployments.seaweed import Seaweed, start_seaweed
from deployments.standin.launch import Standin
from tasks.errors import JobError
from tasks.spec import StoreSpec
from tasks.storage.shard_reader import decode_rejected, decode_shard
from tasks.storage.store import MissingError, ObjectStore, find_job
from tests.conftest import ROOT, free_port, prefect_server
from tests.flows.postgres import running_postgres
from tests.flows.prefect_reads import ask, log_lines, of_run, runs_of, until
from tests.jobs import Rawseq, write_job, write_prompts

WORKERS = 3
RECORDS, BATCH_ROWS = 96, 16
POLL_SECONDS = 0.1
WAIT_SECONDS = 600.0

T = TypeVar("T")


@pytest.fixture(scope="module")
def postgres_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prefect server over a PostgreSQL; yields its API URL."""
    port = free_port()
    with (
        running_postgres(free_port()) as database,
        prefect_server(
            tmp_path_factory.mktemp("prefect"), port, PREFECT_SERVER_DATABASE_CONNECTION_URL=database
        ),
    ):
        yield f"http://127.0.0.1:{port}/api"


@pytest.fixture(scope="module")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """A real S3 server with one bucket."""
    with start_seaweed(tmp_path_factory.mktemp("s3"), bucket="rawseq") as server:
        yield server


def machine(folder: Path, api: str, seaweed: Seaweed) -> dict[str, str]:
    """Return the environment of one machine: folders of its own, the API's address, the store's keys."""
    for name in ("home", "state", "tmp", "prefect"):
        (folder / name).mkdir(parents=True)
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder / "home"),
        "XDG_STATE_HOME": str(folder / "state"),
        "TMPDIR": str(folder / "tmp"),
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_API_URL": api,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PYTHONUNBUFFERED": "1",
        "COLUMNS": "140",
    } | seaweed.environment()


@contextmanager
def started(command: list[str], folder: Path, env: Mapping[str, str]) -> Iterator[psutil.Popen]:
    """Run a command on one machine; end it and all that it has started."""
    with (folder / "log").open("ab") as log:
        process = psutil.Popen(
            [sys.executable, "-m", *command],
            cwd=folder,
            env=env,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        kill(process)


def kill(process: psutil.Process) -> None:
    """SIGKILL a process and its descendants, as when their machine loses power."""
    try:
        family = [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        return
    for each in family:
        try:
            each.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(family, 10)


def wait_for(what: str, look: Callable[[], T | None]) -> T:
    """Return what a look finds; polls processes that no event of ours can tell about."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        found = look()
        if found is not None:
            return found
        time.sleep(POLL_SECONDS)
    raise AssertionError(f"waited {WAIT_SECONDS:.0f} s for {what}")


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
    environments = [machine(folder, postgres_api, seaweed) for folder in folders]
    subprocess.run(
        [sys.executable, "-m", "deployments.register"], env=environments[0], check=True, timeout=240
    )
    main = ["deployments.main", "run", str(job), "--workers", str(WORKERS), "--json"]
    serve = ["prefect", "worker", "start", "--pool", "rawseq", "--type", "process", "--limit", "1"]
    with ExitStack() as stack:
        workers = [
            stack.enter_context(started([*serve, "--name", f"worker{number}"], folder, environment))
            for number, (folder, environment) in enumerate(zip(folders[1:], environments[1:], strict=True))
        ]
        wait_for("ready deployment", lambda: _ready(postgres_api))
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


def _ready(api: str) -> bool | None:
    found = ask(api, "deployments/filter", {"deployments": {"name": {"any_": ["generate-range"]}}})
    return True if found and found[0]["status"] == "READY" else None


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
