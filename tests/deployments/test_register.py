"""Deployments as a Prefect server has them after `python -m deployments.register`."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.client.orchestration import SyncPrefectClient

from deployments.automations import register_automations
from deployments.register import PREFECT_FILE
from tasks.spec import JobSpec

LEAST: dict[str, Any] = {
    "name": "t",
    "model": {"tokenizer": "Qwen/Qwen3-8B"},
    "prompts": {"sources": ["/data/prompts.jsonl"]},
    "servers": {"urls": ["http://127.0.0.1:30000"]},
    "store": {"uri": "/data/out"},
}
"""What a person must add to a preset."""

FILE = yaml.safe_load(PREFECT_FILE.read_text())


def ask(api: str, path: str, body: Any = None) -> Any:
    """GET, or POST a body; return the answer's JSON."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{api}/{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def merged(low: dict[str, Any], high: dict[str, Any]) -> dict[str, Any]:
    """Return `low` with the sections of `high` laid over it."""
    both = deepcopy(low)
    for name, value in high.items():
        both[name] = merged(both.get(name, {}), value) if isinstance(value, dict) else value
    return both


@pytest.fixture(scope="module")
def registered(prefect_api: str, rawseq_env: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Register with the command; return the deployments by name."""
    done = subprocess.run(
        [sys.executable, "-m", "deployments.register"],
        env=rawseq_env,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return {each["name"]: each for each in ask(prefect_api, "deployments/filter", {})}


def test_what_is_declared_is_registered(prefect_api: str, registered: dict[str, dict[str, Any]]) -> None:
    """Every deployment of prefect.yaml: pool, tags, one run at a time with a second one refused."""
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
        wanted = register_automations(client)
    names = [each["name"] for each in ask(prefect_api, "automations/filter", {})]
    assert sorted(names) == sorted(wanted)


def test_schedules_have_zone_and_parameters(registered: dict[str, dict[str, Any]]) -> None:
    """The nightly example: cron, time zone, its own whole job, switched off until somebody wants it."""
    (nightly,) = registered["generate-dataset"]["schedules"]
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
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(prefect_api, path, {"parameters": {"job": merged(LEAST, changed)}})
    assert caught.value.code == 409
    assert named.rpartition(".")[2] in caught.value.read().decode()


def test_prefect_deploy_reads_the_same_file() -> None:
    """Every entrypoint is an importable flow, named as in the layers: nothing in it depends on a folder."""
    from prefect.flows import load_flow_from_entrypoint

    assert Path(PREFECT_FILE).name == "prefect.yaml"
    for each in FILE["deployments"]:
        assert load_flow_from_entrypoint(each["entrypoint"]).name
