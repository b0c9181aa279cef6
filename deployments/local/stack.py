"""Starts the local stack in order, and ends it in the reverse one: runs, worker, embedded server, Prefect."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs

from deployments.local.child import Child, answers, running, wait_until
from deployments.local.folder import StackHome
from deployments.local.presets import demo_job
from deployments.local.server_settings import SERVER_SETTINGS
from deployments.standin.launch import Standin, start_standin
from tasks.errors import SurroundingsError
from tasks.job.spec import JobSpec, StoreSpec

POOL = "rawseq"
"""The work pool of `deployments/prefect.yaml`."""

WATCH_SECONDS = 0.5


@attrs.frozen(slots=True)
class Stack:
    """A running stack.

    Args:
        addresses: where a person finds what: ui, api, server, store, form.
        children: Prefect's server and the worker.
        standin: the embedded server.
    """

    addresses: dict[str, str]
    children: Sequence[Child]
    standin: Standin

    def watch(self) -> None:
        """Return never; what must not end is watched.

        Raises:
            SurroundingsError: one of the processes ended; ends with its log.
        """
        while True:
            for child in self.children:
                if child.ended:
                    raise SurroundingsError(
                        f"{child.name} ended with status {child.process.poll()}; {child.log} ends:\n"
                        f"{child.last_words()}"
                    )
            time.sleep(WATCH_SECONDS)


@contextmanager
def local_stack(home: StackHome, auth: str | None, tell: Callable[[str], None]) -> Iterator[Stack]:
    """Run the stack for the length of the body.

    Args:
        home: its folder, held by the caller.
        auth: `user:password` of Prefect's API; None: open to this machine.
        tell: takes lines for the person at the terminal.

    Raises:
        SurroundingsError: a process did not get ready; ends with its log.
    """
    ports = home.ports()
    env = _environment(home, ports["prefect"], auth)
    os.environ.update(env)  # before Prefect is imported: its client reads its settings once
    with ExitStack() as stack:
        tell("starting Prefect …")
        server = _server(stack, home, env)
        standin = start_standin(
            ["--enable-deterministic-inference"], home.folder / "standin.log", port=ports["standin"]
        )
        stack.callback(standin.end)
        home.note_process("standin", standin.pid)
        job = demo_job(standin.url, StoreSpec(uri=str(home.folder / "store")), home.folder / "journals", None)
        wait_until(server, lambda: answers(f"{env['PREFECT_API_URL']}/health"))
        tell("registering the deployments …")
        ids = _register(job, home.folder / "exports", env)
        worker = _worker(stack, home, env, tell)
        ui = env["PREFECT_API_URL"].removesuffix("/api")
        form = f"{ui}/v2/deployments/deployment/{ids['generate-dataset']}/run"
        addresses = {"ui": ui, "form": form, "api": env["PREFECT_API_URL"], "server": standin.url}
        addresses |= {"store": job.store.uri, "folder": str(home.folder)}
        home.note(addresses=addresses, pid=os.getpid())
        yield Stack(addresses, (server, worker), standin)


def _environment(home: StackHome, port: int, auth: str | None) -> dict[str, str]:
    """Return the environment of the stack's processes: this one's without any other Prefect's settings."""
    for name in [name for name in os.environ if name.startswith("PREFECT_")]:
        del os.environ[name]
    api = f"http://127.0.0.1:{port}/api"
    env = os.environ | SERVER_SETTINGS
    env |= {
        "PREFECT_HOME": str(home.folder / "prefect"),
        "PREFECT_API_URL": api,
        "PREFECT_UI_API_URL": api,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PYTHONUNBUFFERED": "1",
    }
    if auth is not None:
        env |= {"PREFECT_SERVER_API_AUTH_STRING": auth, "PREFECT_API_AUTH_STRING": auth}
    return env


def _server(stack: ExitStack, home: StackHome, env: dict[str, str]) -> Child:
    port = env["PREFECT_API_URL"].rpartition(":")[2].removesuffix("/api")
    arguments = ["prefect", "server", "start", "--host", "127.0.0.1", "--port", port]
    server = stack.enter_context(running("prefect-server", arguments, home.folder, env))
    home.note_process(server.name, server.process.pid)
    return server


def _register(job: JobSpec, exports: Path, env: dict[str, str]) -> dict[str, str]:
    """Register everything that is declared, then lay the demo's job over the presets."""
    command = [sys.executable, "-m", "deployments.register"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SurroundingsError(f"registering the deployments failed:\n{done.stderr.strip()}")
    from prefect import get_client

    from deployments.local.forms import fill_forms, form_values

    with get_client(sync_client=True) as client:
        return fill_forms(client, form_values(job, exports))


def _worker(stack: ExitStack, home: StackHome, env: dict[str, str], tell: Callable[[str], None]) -> Child:
    """Start the worker and return when it polls; at the end its runs are cancelled before it goes."""
    arguments = ["prefect", "worker", "start", "--pool", POOL, "--type", "process", "--name", "up"]
    worker = stack.enter_context(running("prefect-worker", arguments, home.folder, env))
    home.note_process(worker.name, worker.process.pid)
    stack.callback(_cancel_all, tell)
    wait_until(worker, lambda: bool(_workers_online()))
    return worker


def _workers_online() -> list[Any]:
    from prefect import get_client

    with get_client(sync_client=True) as client:
        return client.read_workers_for_work_pool(POOL)


def _cancel_all(tell: Callable[[str], None]) -> None:
    """Cancel the runs under way: a run that its worker leaves behind would stay Running for ever."""
    import httpx
    from prefect import get_client
    from prefect.exceptions import PrefectException

    from deployments.local.forms import cancel_runs

    with suppress(httpx.HTTPError, PrefectException), get_client(sync_client=True) as client:
        for name in cancel_runs(client, POOL):
            tell(f"run {name} cancelled: run it again, or press Retry, and it resumes")
