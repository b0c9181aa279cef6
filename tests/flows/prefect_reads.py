"""What the Prefect server says of runs, over plain HTTP. Not a test module."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

LAG_SECONDS = 120.0
"""The server writes task runs and logs behind their events: on a busy machine so late."""


def ask(api: str, path: str, body: Any = None) -> Any:
    """GET, or POST a body; return the answer's JSON. A 503 (its database was busy) is asked again."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{api}/{path}", data, {"Content-Type": "application/json"})
    deadline = time.monotonic() + LAG_SECONDS
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as refused:
            if refused.code != HTTPStatus.SERVICE_UNAVAILABLE or time.monotonic() > deadline:
                raise
        time.sleep(0.5)  # polling a server that is busy, not synchronising with it


def runs_of(api: str, job: str) -> list[dict[str, Any]]:
    """Return the flow runs whose job has this name, oldest first."""
    found = ask(api, "flow_runs/filter", {"sort": "START_TIME_ASC", "limit": 200})
    return [run for run in found if run["parameters"].get("job", {}).get("name") == job]


def of_run(api: str, what: str, run: str, **more: Any) -> list[dict[str, Any]]:
    """Return the task runs, artifacts or logs of one flow run."""
    if what == "task_runs":
        wanted: dict[str, Any] = {"flow_runs": {"id": {"any_": [run]}}}
    else:
        wanted = {what: {"flow_run_id": {"any_": [run]}}}
    found: list[dict[str, Any]] = ask(api, f"{what}/filter", wanted | {"limit": 200} | more)
    return found


def log_lines(api: str, run: str) -> str:
    """Return a flow run's log, its task runs' lines among it."""
    return "\n".join(line["message"] for line in of_run(api, "logs", run, sort="TIMESTAMP_ASC"))


def until(holds: Callable[[], bool]) -> None:
    """Return when the server knows something that happened before; fail when it never learns it."""
    deadline = time.monotonic() + LAG_SECONDS
    while not holds():
        assert time.monotonic() < deadline, "the Prefect server does not know it"
        time.sleep(0.2)  # polling a server that lags, not synchronising with it
