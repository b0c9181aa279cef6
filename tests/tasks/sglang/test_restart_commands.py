"""The user's restart commands: their own end counts, whatever they leave running with their output open."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import attrs
import psutil
import pytest

from tasks.errors import SurroundingsError
from tasks.fleet.ensure import ensure_servers
from tasks.sglang.restart.stop import _gone
from tests.support.scripted import Scripted, scripted_server, settings

pytestmark = pytest.mark.process

CHILD_SECONDS = 20
"""How long a child that a command left behind holds its output open: short of what a test may take."""


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Path]:
    """Where a test's command goes; what it leaves behind, by its `pid` file, ends with the test."""
    yield tmp_path / "start.sh"
    if (tmp_path / "pid").exists() and (child := _child(tmp_path)) is not None:
        child.send_signal(signal.SIGKILL)


def _child(folder: Path) -> psutil.Process | None:
    """Return the process that a command left behind, None when it has ended."""
    try:
        child = psutil.Process(int((folder / "pid").read_text()))
        return None if child.status() == psutil.STATUS_ZOMBIE else child
    except psutil.NoSuchProcess:
        return None


async def _restart(server: Scripted, script: Path, seconds: float) -> None:
    """Let a job restart a server by one command, which takes its parser off."""
    server.info["reasoning_parser"] = "qwen3"

    def note(line: str) -> None:
        if "running sh" in line:
            server.info["reasoning_parser"] = None

    limits = settings(
        server.url,
        ready_timeout_seconds=seconds,
        restart="command",
        restart_commands={"restart": f"sh {script}"},
    )
    await ensure_servers(attrs.evolve(limits, log_dir=script.parent), note)


async def test_a_command_that_leaves_a_server_in_the_background_has_ended(script: Path) -> None:
    """The child holds the command's output open and is not waited for; what it says is kept in a file."""
    script.write_text(
        f"echo starting; sh -c 'echo $$ >{script.parent}/pid; exec sleep {CHILD_SECONDS}' &\n"
        f"while [ ! -s {script.parent}/pid ]; do sleep 0.05; done\n"
    )
    async with scripted_server() as server:
        await _restart(server, script, 60.0)
    assert _child(script.parent) is not None
    (log,) = script.parent.glob("rawseq-commands-*.log")
    assert log.read_text() == "starting\n"


async def test_a_command_that_takes_too_long_ends_with_all_it_started(script: Path) -> None:
    """The limit holds although a child has the output open: the whole process group ends, and is told."""
    script.write_text(f"sleep {CHILD_SECONDS} & echo $! >{script.parent}/pid; echo half; wait\n")
    async with scripted_server() as server:
        with pytest.raises(SurroundingsError, match=r"sh .*start.sh did not end within 2 s:\nhalf"):
            await _restart(server, script, 2.0)
    child = _child(script.parent)
    assert child is None or await _gone([child], CHILD_SECONDS / 2)


async def test_a_failed_command_shows_its_own_output(script: Path) -> None:
    """Two runs log into one file: the error has what this one said, and no more."""
    async with scripted_server() as server:
        for word in ("first", "second"):
            script.write_text(f"echo {word}; echo to stderr >&2; exit 3\n")
            with pytest.raises(SurroundingsError) as caught:
                await asyncio.wait_for(_restart(server, script, 60.0), 120)
            assert str(caught.value).endswith(f"ended with status 3:\n{word}\nto stderr\n")
