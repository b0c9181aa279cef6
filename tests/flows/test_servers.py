"""`maintain_servers` as a schedule calls it, against a real Prefect server and real stand-ins."""

import inspect
import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect import Flow

from deployments.local.presets import STANDIN_MODEL
from deployments.standin.launch import Standin
from flows.extend import continue_rows
from flows.generate import generate_dataset
from flows.ranges import generate_range
from flows.retry import retry_batches
from tasks.job.spec import JobSpec
from tasks.run.maintain import AWAY, BUSY, FIT, RESTARTED, UNFIT, Tended, problem_of, report_of, summary_of
from tasks.sglang.restart.process import find_server
from tests.flows.prefect_reads import until
from tests.support.embedded import Nursery, prompt
from tests.support.forked import Template

PARSER = ("--reasoning-parser", "qwen3")
RUN = """
import asyncio, json, sys
from flows.servers import maintain_servers
parts = json.loads(sys.argv[1])
flow = maintain_servers(parts["servers"], parts["model"], parts.get("store"), return_state=True)
state = asyncio.run(flow)
print(json.dumps({"name": state.name, "message": state.message}))
"""

Maintain = Callable[..., dict[str, str]]


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    """Servers of one test, and what the flow started in their place."""
    nursery = Nursery(tmp_path)
    yield nursery
    nursery.end_successors()


@pytest.fixture
def maintain(template: Template, tmp_path: Path) -> Maintain:
    """Run the flow in a process of its own; return name and message of its end state."""

    def run(*urls: str, store: bool = False, host: str = "host", **spec: Any) -> dict[str, str]:
        (tmp_path / host).mkdir(exist_ok=True)
        servers = {"urls": list(urls), "ready_timeout_seconds": 120, "drain_timeout_seconds": 0.5} | spec
        parts: dict[str, Any] = {"servers": servers, "model": {"tokenizer": str(STANDIN_MODEL)}}
        if store:
            parts["store"] = {"uri": str(tmp_path / "store")}
        env = {"TMPDIR": str(tmp_path / host)}  # a host's own locks lie there
        printed = template.run_code(RUN, json.dumps(parts), folder=tmp_path / host, env=env)
        return dict(json.loads(printed.splitlines()[-1]))

    return run


def post(api: str, path: str, body: dict[str, Any]) -> Any:
    """POST to the Prefect server."""
    request = urllib.request.Request(f"{api}/{path}", json.dumps(body).encode(), method="POST")
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.loads(reply.read())


def last_report(api: str) -> str:
    """Return the newest report artifact."""
    wanted = {"artifacts": {"key": {"any_": ["servers"]}}, "sort": "CREATED_DESC", "limit": 1}
    (artifact,) = post(api, "artifacts/filter", wanted)
    assert artifact["type"] == "markdown"
    return str(artifact["data"])


def restarts_told(api: str, url: str, least: int = 1) -> list[dict[str, Any]]:
    """Return the events of restarts of a server, when there are at least so many."""
    wanted = {"filter": {"event": {"name": ["rawseq.server.restarted"]}}}
    found: list[dict[str, Any]] = []

    def there() -> bool:
        events = post(api, "events/filter", wanted)["events"]
        found[:] = [event for event in events if event["resource"]["prefect.resource.name"] == url]
        return len(found) >= least

    until(there)
    return found


def test_a_schedule_switches_parsers_off(
    nursery: Nursery, maintain: Maintain, prefect_api: str, tmp_path: Path
) -> None:
    """One server with a parser, one without: the first is restarted under the store's lock, once."""
    with_parser, plain = nursery.start(*PARSER), nursery.start()
    ended = maintain(with_parser.url, plain.url, store=True, restart="local")
    assert ended == {"name": "Completed", "message": "1 restarted, 1 fit"}
    assert "--reasoning-parser" not in find_server(with_parser.url).argv
    report = last_report(prefect_api)
    assert f"| {with_parser.url} | restarted | 0.5.23 | without --reasoning-parser, probe: faithful" in report
    assert f"| {plain.url} | fit | 0.5.23 | probe: faithful" in report
    assert "before  " in report
    assert len(list((tmp_path / "store" / "server-locks").rglob("*.json"))) == 1
    (told,) = restarts_told(prefect_api, with_parser.url)  # what the automation of register waits for
    assert "without --reasoning-parser" in told["payload"]["evidence"]
    assert restarts_told(prefect_api, plain.url, least=0) == []
    again = maintain(with_parser.url, plain.url, store=True, restart="local")
    assert again == {"name": "Completed", "message": "2 fit"}


def test_two_flows_restart_a_server_once(nursery: Nursery, maintain: Maintain, tmp_path: Path) -> None:
    """At once, from two hosts that have only the store in common: one restarts, the other finds it fit."""
    standin = nursery.start(*PARSER)
    with ThreadPoolExecutor(2) as pool:
        ended = list(
            pool.map(
                lambda host: maintain(standin.url, store=True, host=host, restart="local"), ("one", "two")
            )
        )
    assert sorted(each["message"] for each in ended) == ["1 fit", "1 restarted"]
    (lock,) = (tmp_path / "store" / "server-locks").rglob("*.json")
    assert json.loads(lock.read_text())["released"] is True


@pytest.mark.parametrize(
    "flow", [generate_dataset, generate_range, retry_batches, continue_rows], ids=lambda flow: flow.name
)
def test_every_flow_that_generates_names_its_servers(flow: Flow[..., Any]) -> None:
    """Its parameter `job` is what `jobs_under_way` reads: a flow without it would lose its servers."""
    assert inspect.signature(flow.fn).parameters["job"].annotation is JobSpec


def test_what_is_not_fit_fails_with_the_evidence(
    nursery: Nursery, maintain: Maintain, prefect_api: str
) -> None:
    """No restart allowed, and one server that is not there: Failed, each with its reason; none is touched."""
    with_parser, gone = nursery.start(*PARSER), nursery.start()
    gone.end()
    ended = maintain(with_parser.url, gone.url, ready_timeout_seconds=3)
    assert ended["name"] == "Failed"
    assert ended["message"].startswith("2 of 2 servers are not fit")
    assert "LOST chat" in ended["message"]
    assert f"{gone.url}: expected a ready SGLang server" in ended["message"]
    assert with_parser.process.poll() is None
    report = last_report(prefect_api)
    assert f"| {with_parser.url} | unfit |" in report
    assert f"| {gone.url} | away |" in report


def test_a_server_in_use_is_left_alone(nursery: Nursery, maintain: Maintain, prefect_api: str) -> None:
    """Somebody's request is in flight: reported as busy; with `restart_busy` the person has decided."""
    standin = nursery.start(*PARSER)
    body = {
        "input_ids": prompt("Hello!").tolist(),
        "sampling_params": {"max_new_tokens": 3900, "ignore_eos": True},
    }
    with _asking(standin, body) as asking:
        ended = maintain(standin.url, restart="local")
        assert ended == {"name": "Completed", "message": "1 busy"}
        assert asking.poll() is None
        assert standin.process.poll() is None
        assert "it serves others (1 running, 0 waiting)" in last_report(prefect_api)
        ended = maintain(standin.url, restart="local", restart_busy=True)
        assert ended == {"name": "Completed", "message": "1 restarted"}


def test_a_server_of_a_running_job_is_left_alone(
    nursery: Nursery, maintain: Maintain, prefect_api: str
) -> None:
    """A flow run under way names it, although nothing is in flight just now; afterwards it is restarted."""
    standin = nursery.start(*PARSER)
    spelled = standin.url.replace("127.0.0.1", "localhost")
    flow = post(prefect_api, "flows/", {"name": f"generate-{uuid4().hex}"})
    run = post(
        prefect_api,
        "flow_runs/",
        {
            "flow_id": flow["id"],
            "name": "nightly",
            "parameters": {"job": {"servers": {"urls": [spelled]}}},
            "state": {"type": "RUNNING", "name": "Running"},
        },
    )
    assert maintain(standin.url, restart="local") == {"name": "Completed", "message": "1 busy"}
    assert standin.process.poll() is None
    assert "it is a server of flow run nightly" in last_report(prefect_api)
    done = {"state": {"type": "COMPLETED", "name": "Completed"}, "force": True}
    post(prefect_api, f"flow_runs/{run['id']}/set_state", done)
    assert maintain(standin.url, restart="local")["message"] == "1 restarted"


def _asking(standin: Standin, body: dict[str, Any]) -> "subprocess.Popen[bytes]":
    """Start a process that waits for one long generation."""
    code = (
        "import sys, urllib.request as r; q = r.Request(sys.argv[1], sys.argv[2].encode(), "
        "{'Content-Type': 'application/json'}); r.urlopen(q, timeout=200).read()"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, f"{standin.url}/generate", json.dumps(body)], stderr=subprocess.DEVNULL
    )


def test_the_report_counts_and_explains() -> None:
    """One line for the state, a table with every server, the evidence of those that are not fit."""
    tended = [
        Tended("http://a", FIT, "probe: faithful", "A", "0.5.23"),
        Tended("http://b", RESTARTED, "x|y", "B", "0.5.23"),
        Tended("http://c", BUSY, "in use", "C"),
        Tended("http://d", FIT, "probe: faithful", "D", "0.5.23"),
    ]
    assert summary_of(tended) == "2 fit, 1 restarted, 1 busy"
    assert problem_of(tended) == ""
    assert "| http://b | restarted | 0.5.23 | x\\|y |" in report_of(tended)
    bad = [*tended, Tended("http://e", UNFIT, "e", "E1\nE2"), Tended("http://f", AWAY, "f", "F")]
    assert problem_of(bad) == "2 of 6 servers are not fit:\nE1\nE2\nF"
