"""A run in a shell that a person cancels in Prefect's UI: it stops as by Ctrl-C, and ends as Cancelled."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deployments.standin.launch import Standin
from tests.support.embedded import switch
from tests.support.forked import Template
from tests.support.jobs import Rawseq, write_job, write_prompts
from tests.support.prefect_api import ask

MINUTE = 60.0


def wait_for(what: str, look: Callable[[], Any]) -> Any:
    """Return what `look` sees as soon as it is something, within a minute: a person waits no longer."""
    until = time.monotonic() + MINUTE
    while time.monotonic() < until:
        if found := look():
            return found
        time.sleep(0.1)  # polling other processes, not synchronising with them
    raise AssertionError(f"no {what} within {MINUTE:.0f} s")


async def test_a_run_cancelled_in_the_ui_stops_and_resumes(
    tmp_path: Path, template: Template, rawseq: Rawseq, standin: Standin, prefect_api: str
) -> None:
    """Its state is Cancelled in the end and was never Crashed; no lease is held; the same command resumes."""
    file, store = write_prompts(tmp_path / "p.jsonl", 24), tmp_path / "store"
    job = write_job(tmp_path / "job.yaml", standin.url, file, store, batch={"rows": 4})
    job.write_text(job.read_text().replace("name: t\n", "name: ui-cancel\n"))
    await switch(standin.url, slow_reply=2)
    log = tmp_path / "first.log"
    pid = template.start(log, "run", str(job), "--json", out=tmp_path / "first.out")
    journals = tmp_path / "journals"
    wait_for("row", lambda: any(path.stat().st_size > 1000 for path in journals.rglob("*.journal")))
    await switch(standin.url, hang=True)  # so that it cannot end by itself
    wanted = {"flow_runs": {"name": {"any_": ["ui-cancel"]}}}
    run = ask(prefect_api, "flow_runs/filter", wanted)[0]["id"]
    ask(prefect_api, f"flow_runs/{run}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}})
    wait_for("end", lambda: template.status(pid) is not None)
    assert template.status(pid) == 1
    told = json.loads((tmp_path / "first.out").read_text())["error"]
    assert "cancelled in Prefect" in told["message"]
    assert "Traceback" not in log.read_text()
    states = ask(prefect_api, f"flow_run_states/?flow_run_id={run}")
    assert sorted(states, key=lambda state: str(state["timestamp"]))[-1]["type"] == "CANCELLED"
    assert "CRASHED" not in {state["type"] for state in states}
    leases = [json.loads(path.read_bytes()) for path in store.rglob("leases/*/*.json")]
    assert leases
    assert all(lease.get("released") for lease in leases)
    await switch(standin.url, hang=None, slow_reply=None)
    ran = rawseq("run", str(job))
    assert ran.status == 0, ran.stderr
