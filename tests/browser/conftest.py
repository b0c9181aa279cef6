"""The UI as a person uses it: `rawseq up`, and the system's Chromium driven by Playwright.

`make test-browser` runs these. Each page that is asserted is also kept as a picture in `screenshots/` beside
this file, for people. RAWSEQ_UP names the folder of a stack that runs already, which saves its start.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from tests.support.prefect_api import ask

if TYPE_CHECKING:
    from playwright.sync_api import Page

UP_SECONDS = 600.0
"""A start takes 25 s on an idle machine."""

WAIT_SECONDS = 600.0
"""A run starts in 8 s on an idle machine, in minutes on one with twenty times its work to do."""

SCREENSHOTS = Path(__file__).resolve().parent / "screenshots"


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave the browser tests out unless `RAWSEQ_BROWSER` is set, as `make test-browser` does."""
    return None if os.environ.get("RAWSEQ_BROWSER") else True


Shot = Callable[["Page", str], None]


@attrs.frozen
class Up:
    """A running `rawseq up`.

    Args:
        addresses: what it printed.
        process: the command.
        folder: its folder.
        auth: `user:password` of its API; None: open.
    """

    addresses: dict[str, str]
    process: "subprocess.Popen[bytes] | None"
    folder: Path
    auth: str | None = None

    def ask(self, path: str, body: Any = None, method: str | None = None) -> Any:
        """GET, or POST a body to Prefect's API; return the answer's JSON."""
        return ask(self.addresses["api"], path, body, method=method, auth=self.auth)

    def deployment(self, name: str = "generate-dataset/generate-dataset") -> dict[str, Any]:
        """Return a deployment as the API has it."""
        found: dict[str, Any] = self.ask(f"deployments/name/{name}")
        return found

    def preset(self, job: dict[str, Any]) -> str:
        """Fill the form of generate-dataset with a job; return the form's address."""
        self.ask(f"deployments/{self.deployment()['id']}", {"parameters": {"job": job}}, "PATCH")
        return self.addresses["form"]

    def runs(self) -> set[str]:
        """Return the ids of all flow runs."""
        return {run["id"] for run in self.ask("flow_runs/filter", {})}

    def run(self, run_id: str) -> dict[str, Any]:
        """Return a flow run."""
        run: dict[str, Any] = self.ask(f"flow_runs/{run_id}")
        return run

    def wait(self, run_id: str, *states: str, count: int = 1) -> dict[str, Any]:
        """Return the run when it is in one of the states (names), in at least its `count`-th attempt."""
        found: list[dict[str, Any]] = []

        def there() -> bool:
            found[:] = [self.run(run_id)]
            return found[0]["state"]["name"] in states and found[0]["run_count"] >= count

        until(there, lambda: f"expected {states}, got {found[0]['state'] if found else 'nothing'}")
        return found[0]

    def commits(self, run_id: str) -> Counter[str]:
        """Return how often each batch was committed in all attempts, as far as the server knows by now.

        Task runs reach it as events, seconds after the flow run's own state on a busy machine.
        """
        body = {"flow_runs": {"id": {"any_": [run_id]}}, "limit": 200}
        tasks = self.ask("task_runs/filter", body)
        return Counter(task["name"].split()[1] for task in tasks if task["name"].startswith("commit_batch"))

    def log(self, run_id: str) -> str:
        """Return the lines of a run's log in all attempts, as far as the server knows them by now."""
        lines = self.ask("logs/filter", {"logs": {"flow_run_id": {"any_": [run_id]}}, "limit": 200})
        return "\n".join(line["message"] for line in lines)

    def page_of(self, run_id: str) -> str:
        """Return the address of a run's page."""
        return f"{self.addresses['ui']}/v2/runs/flow-run/{run_id}"


def until(there: Callable[[], bool], problem: Callable[[], str], seconds: float = WAIT_SECONDS) -> None:
    """Return when `there` says so; fail with the problem when time runs out."""
    deadline = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < deadline, problem()
        time.sleep(0.5)  # polling a server that belongs to others


def start_up(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> Up:
    """Start `rawseq up --json` in `folder`; return when it printed its addresses."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PREFECT_"))}
    log = folder / "up.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "deployments.cli.main", "up", "--json", *arguments],
            cwd=folder,
            env=clean | {"PYTHONUNBUFFERED": "1"} | (env or {}),
            stdout=subprocess.PIPE,
            stderr=sink,
        )
    assert process.stdout is not None
    watchdog = subprocess.Popen(["sleep", str(UP_SECONDS)])
    os.set_blocking(process.stdout.fileno(), False)
    line = b""
    while b"\n" not in line and process.poll() is None and watchdog.poll() is None:
        line += process.stdout.read() or b""
        time.sleep(0.2)  # polling a process that starts
    watchdog.kill()
    watchdog.wait()
    assert b"\n" in line, log.read_text()
    return Up(json.loads(line), process, folder / "rawseq-up")


def stop_up(up: Up) -> str:
    """Press Ctrl-C; return what it said when it ended."""
    assert up.process is not None
    up.process.send_signal(signal.SIGINT)
    up.process.wait(240)
    assert up.process.stdout is not None
    up.process.stdout.close()
    return (up.folder.parent / "up.log").read_text()


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """The local stack."""
    if folder := os.environ.get("RAWSEQ_UP"):
        record = json.loads((Path(folder) / "stack.json").read_text())
        yield Up(record["addresses"], None, Path(folder))
        return
    started = start_up(tmp_path_factory.mktemp("up"))
    yield started
    stop_up(started)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """The system's Chromium, headless."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert program, "expected Chromium (apt-get install chromium), found none on PATH"
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def page(browser: Any) -> Iterator["Page"]:
    """A fresh page, patient with a busy machine."""
    context = browser.new_context(viewport={"width": 1400, "height": 1100})
    context.set_default_timeout(180_000)
    yield context.new_page()
    context.close()


@pytest.fixture
def shot() -> Shot:
    """Keep a picture of a page."""

    def keep(page: "Page", name: str) -> None:
        SCREENSHOTS.mkdir(exist_ok=True)
        page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)

    return keep
