"""The server that Prefect starts when there is none: it ends with the command, however that ends."""

import multiprocessing
import signal
import subprocess
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest
from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import PREFECT_API_URL, temporary_settings

from deployments.cli.flow import end_server_with_us, end_with_us


@pytest.fixture
def server() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that would go on for ever."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def _command(pid: int, alive: Connection) -> None:
    end_with_us(pid)
    alive.send("begun")
    signal.pause()


def test_a_killed_command_takes_its_server_with_it(server: "subprocess.Popen[bytes]") -> None:
    """`kill -9` runs nothing of the command's own: the kernel closes its end of the pipe."""
    ours, theirs = multiprocessing.Pipe()
    command = multiprocessing.get_context("fork").Process(target=_command, args=(server.pid, theirs))
    command.start()
    assert ours.recv() == "begun"
    assert server.poll() is None
    command.kill()
    command.join()
    assert server.wait(30) == -signal.SIGTERM


def test_another_prefect_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """What is not there to be watched is said in a line, and nothing else happens."""
    monkeypatch.delattr(SubprocessASGIServer, "_run_uvicorn_command")
    with temporary_settings(set_defaults={PREFECT_API_URL: None}, restore_defaults={PREFECT_API_URL}):
        end_server_with_us.__wrapped__()
    (record,) = caplog.records
    assert "temporary server in a way that is not known here" in record.getMessage()
