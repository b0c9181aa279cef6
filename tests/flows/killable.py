"""The four processes of a job, each of which may be killed and is started again at its address.

Not a test module.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Self

from deployments.local.seaweed import start_seaweed
from deployments.standin.launch import start_standin
from tests.conftest import free_port, wait_for_url
from tests.flows.counted import prompts_started

SERVERS = ("standin", "s3", "prefect")


class Killable:
    """A stand-in, an S3 server and a Prefect server; use as a context.

    Args:
        folder: what they keep.
        env: environment of the Prefect server.
    """

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._folder = folder
        self._port = free_port()
        self.api = f"http://127.0.0.1:{self._port}/api"
        self._env = env | {
            "PREFECT_HOME": str(folder / "prefect"),
            "PREFECT_API_URL": self.api,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        }
        self.standin = start_standin(["--enable-deterministic-inference"], folder / "standin.log")
        self.s3 = start_seaweed(folder / "s3")
        self._prefect = self._start_prefect()
        self._started: Counter[str] = Counter()  # generations of stand-ins that were killed
        self._lock = threading.Lock()
        self.kills: list[tuple[float, str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.standin.kill()
        self.s3.kill()
        self._kill_prefect()

    def environment(self) -> dict[str, str]:
        """Return how a `rawseq` command finds them."""
        return self._env | self.s3.environment()

    def kill(self, name: str) -> None:
        """SIGKILL one of them and start it again; one at a time."""
        with self._lock:
            self.kills.append((time.monotonic(), name))
            if name == "standin":
                self._started += prompts_started(self.standin.url)  # what begins after this dies at once
                port = int(self.standin.url.rpartition(":")[2])
                self.standin.kill()
                log = self.standin.log_path
                self.standin = start_standin(["--enable-deterministic-inference"], log, port=port)
            elif name == "s3":
                self.s3.kill()
                self.s3 = start_seaweed(self.s3.folder, port=self.s3.port)
            else:
                self._kill_prefect()
                self._prefect = self._start_prefect()

    def wait(self) -> None:
        """Return when no server is being started again."""
        with self._lock:
            pass

    def started(self) -> Counter[str]:
        """Return how often a generation was begun for each prompt, over all stand-ins."""
        with self._lock:
            return self._started + prompts_started(self.standin.url)

    def _kill_prefect(self) -> None:
        os.killpg(self._prefect.pid, signal.SIGKILL)
        self._prefect.wait()

    def _start_prefect(self) -> subprocess.Popen[bytes]:
        log = self._folder / "prefect.log"
        command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1"]
        with log.open("ab") as sink:
            process = subprocess.Popen(
                [*command, "--port", str(self._port)],
                env=self._env,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
        wait_for_url(f"{self.api}/health", process, log)
        return process
