"""The local stack's folder: Prefect's database, the demo's store, logs, and a record of what runs."""

import fcntl
import secrets
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import psutil

from deployments.standin.launch import free_port
from tasks.errors import SurroundingsError
from tasks.store.disk import lasting_text

USUAL_PORTS = {"prefect": 4200, "standin": 30000}
"""Prefect's and SGLang's own defaults, taken when they are free."""

LEFTOVER_SECONDS = 10.0
START_TOLERANCE_SECONDS = 2.0
"""The boot time that start times are counted from may drift by this much."""


class StackHome:
    """`rawseq-up/`, or another folder.

    Args:
        folder: made if absent.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Yield True and hold the folder, or False when a running stack holds it.

        Raises:
            SurroundingsError: it is no folder that can be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = (self.folder / "lock").open("w")
        except OSError as error:
            raise SurroundingsError(
                f"{self.folder}: expected a folder that can be written, got: {error.strerror}"
            ) from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True

    @property
    def record(self) -> dict[str, Any]:
        """What the last `up` noted: addresses, ports, processes; {} at first."""
        path = self.folder / "stack.json"
        data = path.read_bytes() if path.exists() else b""  # a full disk leaves it empty
        record: dict[str, Any] = orjson.loads(data) if data else {}
        return record

    def note(self, **facts: Any) -> None:
        """Add facts to the record, whole or not at all."""
        path, new = self.folder / "stack.json", self.folder / "stack.json.new"
        new.write_bytes(orjson.dumps(self.record | facts, option=orjson.OPT_INDENT_2))
        new.replace(path)

    def note_process(self, name: str, pid: int) -> None:
        """Note a process of the stack, so that the next `up` ends it should this one be killed."""
        started = psutil.Process(pid).create_time()
        self.note(processes=self.record.get("processes", {}) | {name: [pid, started]})

    def end_leftovers(self) -> list[str]:
        """End what a killed `up` left behind, known by pid and start time; return the names."""
        ended = []
        for name, (pid, started) in self.record.get("processes", {}).items():
            try:
                process = psutil.Process(pid)
                if abs(process.create_time() - started) < START_TOLERANCE_SECONDS:
                    _end_tree(process)
                    ended.append(name)
            except psutil.NoSuchProcess:
                continue
        self.note(processes={})
        return ended

    def ports(self) -> dict[str, int]:
        """Return a port for each server: the one of last time, else the usual one, else a free one.

        Jobs and links of last time name these ports, so they are kept where they can be.
        """
        kept = self.record.get("ports", {})
        ports: dict[str, int] = {}
        for name, usual in USUAL_PORTS.items():
            wanted = [port for port in (kept.get(name), usual) if port and _is_free(port)]
            ports[name] = wanted[0] if wanted else free_port()
        self.note(ports=ports)
        return ports

    def auth_string(self, environment: Mapping[str, str], wanted: bool) -> str | None:
        """Return `user:password` of the API: the environment's, else one made up and kept; None: open.

        Args:
            environment: PREFECT_SERVER_API_AUTH_STRING in it counts as wanted.
            wanted: whether one is made up when the environment has none.
        """
        if given := environment.get("PREFECT_SERVER_API_AUTH_STRING"):
            return given
        if not wanted:
            return None
        return lasting_text(self.auth_file, lambda: f"rawseq:{secrets.token_urlsafe(18)}")

    @property
    def auth_file(self) -> Path:
        """Where a made-up auth string lies, readable by this user only."""
        return self.folder / "api-auth"


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _end_tree(process: psutil.Process) -> None:
    """End a process and what it started: a worker's flow runs are its children."""
    tree = [process, *process.children(recursive=True)]
    for each in tree:
        each.terminate()
    _, alive = psutil.wait_procs(tree, LEFTOVER_SECONDS)
    for each in alive:
        each.kill()
    psutil.wait_procs(alive, LEFTOVER_SECONDS)
