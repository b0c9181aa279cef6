"""Deployments as a Prefect server has them after `python -m deployments.register`."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from copy import deepcopy
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from prefect.client.orchestration import SyncPrefectClient

from deployments.automations import MOST_RESUMES, pending_runs_crash, register_automations
from deployments.register import PREFECT_FILE
from tasks.job.spec import JobSpec
from tests.support.prefect_api import RefusedError, ask

LEAST: dict[str, Any] = {
    "name": "t",
    "model": {"tokenizer": "Qwen/Qwen3-8B"},
    "prompts": {"sources": ["/data/prompts.jsonl"]},
    "servers": {"urls": ["http://127.0.0.1:30000"]},
    "store": {"uri": "/data/out"},
}
"""What a person must add to a preset."""

FILE = yaml.safe_load(PREFECT_FILE.read_text())


def merged(low: dict[str, Any], high: dict[str, Any]) -> dict[str, Any]:
    """Return `low` with the sections of `high` laid over it."""
    both = deepcopy(low)
    for name, value in high.items():
        both[name] = merged(both.get(name, {}), value) if isinstance(value, dict) else value
    return both


@pytest.fixture(scope="module")
def told() -> Iterator[tuple[str, list[str]]]:
    """A web hook's address, and what it was told."""
    bodies: list[str] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            del format, arguments

    with ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", bodies
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def registered(
    prefect_api: str, rawseq_env: dict[str, str], told: tuple[str, list[str]]
) -> dict[str, dict[str, Any]]:
    """Register with the command, a notification block told of runs; return the deployments by name."""
    block = (
        "import sys; from prefect.blocks.notifications import CustomWebhookNotificationBlock as Hook; "
        "Hook(name='team', url=sys.argv[1], json_data={'text': '{{subject}} | {{body}}'}).save('team')"
    )
    for command in (
        ["-c", block, told[0]],
        ["-m", "deployments.register", "--notify", "custom-webhook/team"],
    ):
        done = subprocess.run(
            [sys.executable, *command], env=rawseq_env, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stderr
    return {each["name"]: each for each in ask(prefect_api, "deployments/filter", {})}


def test_what_is_declared_is_registered(prefect_api: str, registered: dict[str, dict[str, Any]]) -> None:
    """Every deployment of prefect.yaml: pool, tags, one run at a time, what becomes of a second one."""
    assert sorted(registered) == sorted(each["name"] for each in FILE["deployments"])
    for each in FILE["deployments"]:
        there = registered[each["name"]]
        assert (there["work_pool_name"], there["entrypoint"]) == ("rawseq", each["entrypoint"])
        assert there["tags"] == each["tags"]
        assert there["enforce_parameter_schema"] is True
        if limit := each.get("concurrency_limit"):
            assert there["global_concurrency_limit"]["limit"] == limit["limit"]
            assert there["concurrency_options"]["collision_strategy"] == limit["collision_strategy"]
    assert ask(prefect_api, "work_pools/rawseq")["type"] == "process"


def test_automations_are_registered_once(prefect_api: str, registered: dict[str, dict[str, Any]]) -> None:
    """Registering again brings them up to date and doubles none."""
    assert registered
    with SyncPrefectClient(prefect_api) as client:
        block = client.read_block_document_by_name("team", "custom-webhook")
        wanted = register_automations(client, block.id)
    names = [each["name"] for each in ask(prefect_api, "automations/filter", {})]
    assert sorted(names) == sorted(wanted)


def test_schedules_have_zone_and_parameters(registered: dict[str, dict[str, Any]]) -> None:
    """The nightly example: cron, time zone, its own whole job, switched off until somebody wants it."""
    (nightly,) = registered["nightly"]["schedules"]
    assert (nightly["slug"], nightly["active"]) == ("nightly", False)
    assert (nightly["schedule"]["cron"], nightly["schedule"]["timezone"]) == ("0 1 * * *", "Europe/Berlin")
    assert JobSpec.model_validate(nightly["parameters"]["job"]).name == "nightly"


@pytest.mark.parametrize("name", FILE["definitions"]["presets"])
def test_a_preset_is_part_of_a_job(name: str) -> None:
    """A preset and what a person must add make a job; no preset holds what it need not."""
    preset = FILE["definitions"]["presets"][name]
    job = JobSpec.model_validate(merged(LEAST, preset))
    default = JobSpec.model_validate(LEAST)
    assert job != default


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        pytest.param({"batch": {"rows": 0}}, "job.batch.rows", id="below-its-bound"),
        pytest.param({"prompts": {"turns": "some"}}, "job.prompts.turns", id="no-such-choice"),
        pytest.param({"sampling": {"temprature": 1}}, "temprature", id="unknown-field"),
        pytest.param({"name": "Not A Name"}, "job.name", id="wrong-pattern"),
        pytest.param({"servers": {"urls": ["http://u:hunter2@h:1"]}}, "job.servers.urls", id="secret-in-url"),
        pytest.param({"store": {"uri": "s3://k:hunter2@b/x"}}, "job.store.uri", id="secret-in-store"),
        pytest.param(
            {"prompts": {"sources": ["s3://k:hunter2@b/x"]}}, "job.prompts.sources", id="secret-in-source"
        ),
    ],
)
def test_a_wrong_value_starts_no_run(
    prefect_api: str, registered: dict[str, dict[str, Any]], changed: dict[str, Any], named: str
) -> None:
    """The server refuses it before a run exists, and says where; a secret is thus never stored."""
    path = f"deployments/{registered['generate-dataset']['id']}/create_flow_run"
    with pytest.raises(RefusedError) as caught:
        ask(prefect_api, path, {"parameters": {"job": merged(LEAST, changed)}})
    assert caught.value.status == 409
    assert named.rpartition(".")[2] in caught.value.text


@pytest.mark.parametrize(
    ("name", "parameters", "state"),
    [
        pytest.param("pilot", {"job": LEAST}, "AwaitingConcurrencySlot", id="by-hand-waits"),
        pytest.param("nightly", {"job": LEAST}, "Cancelled", id="by-the-clock-is-refused"),
    ],
)
def test_a_second_run_of_a_deployment(
    prefect_api: str,
    registered: dict[str, dict[str, Any]],
    name: str,
    parameters: dict[str, Any],
    state: str,
) -> None:
    """While a run works, another one that a person starts waits; one that a schedule starts is refused."""
    path = f"deployments/{registered[name]['id']}/create_flow_run"
    runs = [ask(prefect_api, path, {"parameters": parameters})["id"] for _ in range(2)]
    pending = {"state": {"type": "PENDING", "name": "Pending"}}
    answers = [ask(prefect_api, f"flow_runs/{run}/set_state", pending) for run in runs]
    assert [answer["status"] for answer in answers] == ["ACCEPT", "REJECT"]
    assert answers[1]["state"]["name"] == state
    if state == "Cancelled":
        assert answers[1]["state"]["message"] == "Deployment concurrency limit reached."
    else:
        ended = {"state": {"type": "COMPLETED", "name": "Completed"}, "force": True}
        ask(prefect_api, f"flow_runs/{runs[0]}/set_state", ended)
        freed = ask(prefect_api, f"flow_runs/{runs[1]}/set_state", pending)
        assert freed["status"] == "ACCEPT"  # its turn has come


def test_people_are_told(
    prefect_api: str, registered: dict[str, dict[str, Any]], told: tuple[str, list[str]]
) -> None:
    """A run that fails and a server that was restarted each reach the notification block, with the reason."""
    path = f"deployments/{registered['pilot']['id']}/create_flow_run"
    run = ask(prefect_api, path, {"parameters": {"job": LEAST}, "name": "doomed"})
    state = {"type": "FAILED", "name": "Failed", "message": "2 of 8 batches are not committed"}
    ask(prefect_api, f"flow_runs/{run['id']}/set_state", {"state": state, "force": True})
    event = {
        "id": str(uuid4()),
        "occurred": datetime.now(UTC).isoformat(),
        "event": "rawseq.server.restarted",
        "resource": {
            "prefect.resource.id": "rawseq.server.http://a:1",
            "prefect.resource.name": "http://a:1",
        },
        "payload": {"evidence": "without --reasoning-parser"},
    }
    ask(prefect_api, "events", [event])
    expected = (
        "doomed Failed | 2 of 8 batches are not committed",
        "server restarted | http://a:1",
        "without --reasoning-parser",
    )
    deadline = time.monotonic() + 240
    while missing := [words for words in expected if words not in "\n".join(told[1])]:
        assert time.monotonic() < deadline, (missing, told[1])
        time.sleep(0.1)  # polling for messages that the server sends by itself


def test_a_crashed_run_resumes_three_times_at_most(
    prefect_api: str, registered: dict[str, dict[str, Any]]
) -> None:
    """Each kill schedules it again, up to the bound; what SIGTERM ended, as Cancel does, stays ended."""
    path = f"deployments/{registered['generate-dataset']['id']}/create_flow_run"

    def crash(run: str, message: str = "no sign of life for 90 s: it was killed") -> None:
        for kind in ("RUNNING", "CRASHED"):
            state = {"type": kind, "name": kind.capitalize(), "message": message}
            ask(prefect_api, f"flow_runs/{run}/set_state", {"state": state, "force": True})

    def wait_resumed(run: str) -> None:
        deadline = time.monotonic() + 240
        while ask(prefect_api, f"flow_runs/{run}")["state"]["type"] != "SCHEDULED":
            assert time.monotonic() < deadline
            time.sleep(0.1)  # polling for what the server does by itself

    job = {"parameters": {"job": LEAST}}
    unlucky, other, unleased, ended = (ask(prefect_api, path, job)["id"] for _ in range(4))
    crash(ended, "Process exited with status code: -15. Process exited due to a SIGTERM signal.")
    for _ in range(MOST_RESUMES):
        crash(unlucky)
        wait_resumed(unlucky)
    crash(unlucky)
    crash(other, "Process exited with status code: 1. Check the flow run logs.")
    crash(unleased, "Execution was cancelled by the runtime environment.")
    wait_resumed(unleased)
    wait_resumed(other)  # the server has dealt with the later crash, so with the earlier one too
    for run in (unlucky, ended):
        assert ask(prefect_api, f"flow_runs/{run}")["state"]["name"] == "Crashed"


def test_a_run_that_never_begins_becomes_crashed(
    prefect_api: str, registered: dict[str, dict[str, Any]]
) -> None:
    """Its worker died while it was Pending: nobody else would say so. Ten seconds here, ten minutes there."""
    quick = pending_runs_crash(10).model_copy(update={"name": "quick"})
    with SyncPrefectClient(prefect_api) as client:
        client.create_automation(quick)
    path = f"deployments/{registered['pilot']['id']}/create_flow_run"
    run = ask(prefect_api, path, {"parameters": {"job": LEAST}})["id"]
    state = {"state": {"type": "PENDING", "name": "Pending"}, "force": True}
    ask(prefect_api, f"flow_runs/{run}/set_state", state)
    deadline = time.monotonic() + 240
    while (found := ask(prefect_api, f"flow_runs/{run}")["state"])["type"] != "CRASHED":
        assert time.monotonic() < deadline, found
        time.sleep(0.2)  # polling for what the server does by itself
    assert found["message"] == "no sign of life for 10 s: its worker died before it began"


def test_prefect_deploy_reads_the_same_file() -> None:
    """Every entrypoint is an importable flow, named as in the layers: nothing in it depends on a folder."""
    from prefect.flows import load_flow_from_entrypoint

    assert Path(PREFECT_FILE).name == "prefect.yaml"
    for each in FILE["deployments"]:
        assert load_flow_from_entrypoint(each["entrypoint"]).name
