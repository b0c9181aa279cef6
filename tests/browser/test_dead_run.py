"""A host that dies: nobody reports its run, so the declared automations must."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from deployments.automations import SILENT_SECONDS
from tests.browser.conftest import Shot, Up, until
from tests.browser.test_ui import EACH_ONCE, SLOWLY, job_over, standin_on, switch

if TYPE_CHECKING:
    from playwright.sync_api import Page

POOL = "doomed"


@contextmanager
def worker(up: Up, folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a worker of a pool of its own, as on another host; whatever is left of it is killed at the end."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    env |= {"PREFECT_API_URL": up.addresses["api"], "PREFECT_HOME": str(folder / "prefect")}
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process"]
    with (folder / "worker.log").open("ab") as sink:
        process = subprocess.Popen(command, env=env, stdout=sink, stderr=sink, start_new_session=True)
    try:
        yield process
    finally:
        kill(process)


def kill(process: "subprocess.Popen[bytes]") -> None:
    """SIGKILL a worker and everything that it started, at once, as a power cut does."""
    if process.poll() is None:
        parent = psutil.Process(process.pid)
        tree = [parent, *parent.children(recursive=True)]
        for each in tree:
            each.suspend()  # none may report what happens to another
        for each in tree:
            each.kill()
    process.wait()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_run_whose_host_died_becomes_crashed_and_resumes(
    up: Up, page: "Page", shot: Shot, tmp_path: Path
) -> None:
    """SIGKILL of worker and run: Running until its heartbeat is missed, Crashed, then resumed elsewhere."""
    standin = standin_on(tmp_path, "--fault", SLOWLY)
    try:
        with worker(up, tmp_path) as doomed:
            until(
                lambda: POOL in str(up.ask("work_pools/filter", {})), lambda: "expected the pool, found none"
            )
            pilot = up.deployment("generate-dataset/pilot")["id"]
            up.ask(f"deployments/{pilot}", {"work_pool_name": POOL}, "PATCH")
            body = {"parameters": {"job": job_over(standin, tmp_path)}}
            run_id = up.ask(f"deployments/{pilot}/create_flow_run", body)["id"]
            until(
                lambda: len(list((tmp_path / "out").rglob("receipts/*.json"))) > 0,
                lambda: f"expected a receipt, got {up.run(run_id)['state']}",
            )
            kill(doomed)
        killed = time.monotonic()
        assert up.run(run_id)["state"]["name"] == "Running"
        up.wait(run_id, "Crashed", "AwaitingRetry", "Late")
        assert time.monotonic() - killed < 2 * SILENT_SECONDS
        switch(standin, slow_reply=None)
        with worker(up, tmp_path):
            done = up.wait(run_id, "Completed", "Failed", count=2)
    finally:
        standin.end()
    assert done["state"]["name"] == "Completed", done["state"]
    history = sorted(
        up.ask(f"flow_run_states/?flow_run_id={run_id}"), key=lambda state: str(state["timestamp"])
    )
    names = [state["name"] for state in history]
    assert names.index("Running") < names.index("Crashed") < names.index("AwaitingRetry")
    (crashed,) = (state for state in history if state["name"] == "Crashed")
    assert f"no sign of life for {SILENT_SECONDS} s" in crashed["message"]
    until(lambda: up.commits(run_id) == EACH_ONCE, lambda: str(up.commits(run_id)))
    page.goto(up.page_of(run_id))
    page.get_by_text("Completed").first.wait_for()
    shot(page, "resumed-after-crash")
