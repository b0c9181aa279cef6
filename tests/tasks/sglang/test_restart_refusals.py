"""What a local restart refuses before its first signal, over real processes; only those started here."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from deployments.standin.launch import ROOT, Standin, free_port
from tasks.sglang.restart.process import find_server, is_server_command
from tests.conftest import wait_for_url
from tests.support.embedded import Nursery

PARSER = ("--reasoning-parser", "qwen3")


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    """Servers of one test, and whatever was started in their place."""
    nursery = Nursery(tmp_path)
    yield nursery
    nursery.end_successors()


def start_under(nursery: Nursery, wrapper: Sequence[str], *flags: str) -> Standin:
    """Start an embedded server as the last words of another program's command line; wait until it serves."""
    port, log = free_port(), nursery.folder / "wrapped.log"
    words = [sys.executable, "-m", "deployments.standin", "--host", "127.0.0.1", "--port", str(port), *flags]
    with log.open("ab") as out:
        process = subprocess.Popen(
            [*wrapper, *words],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    standin = Standin(f"http://127.0.0.1:{port}", process, log)
    nursery.standins.append(standin)
    wait_for_url(f"{standin.url}/ready", process, log)
    return standin


@pytest.mark.parametrize(
    ("command", "server"),
    [
        ("python3.11 -u -X dev -m sglang.launch_server --port 1", True),
        ("python -Im sglang.launch_server", True),
        ("python -msglang.launch_server", True),
        ("/venv/bin/sglang serve --port 1", True),
        ("tmux new -d python -m sglang.launch_server --port 1", False),
        ("SCREEN -dmS a sglang serve", False),
        ("bash -c $@ a python -m sglang.launch_server", False),
        ("env A=1 python -m sglang.launch_server", False),
        ("numactl -N 0 python -m sglang.launch_server", False),
        ("srun python3 -m sglang.launch_server", False),
        ("python keeper.py -m sglang.launch_server", False),
        ("python -m keeper -m sglang.launch_server", False),
        ("python -c pass -m sglang.launch_server", False),
        ("python - -m sglang.launch_server", False),
        ("pythonic -m sglang.launch_server", False),
        ("", False),
    ],
)
def test_only_what_python_or_sglang_runs_is_a_server(command: str, server: bool) -> None:
    """The program counts, and what it runs: a wrapper's command line holds the server's as well."""
    assert is_server_command(command.split()) is server


WRAPPERS = {
    "a shell": ["bash", "-c", '"$@"; exit', "tmux"],
    "a keeper in Python": [
        *(sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])"),
    ],
}


@pytest.mark.parametrize("wrapper", WRAPPERS.values(), ids=WRAPPERS)
def test_a_wrapper_is_not_the_server(nursery: Nursery, wrapper: list[str]) -> None:
    """What started the server has the server's words on its own command line: the server itself is found."""
    standin = start_under(nursery, wrapper)
    server = find_server(standin.url)
    assert server.pid != standin.pid
    assert server.argv[:3] == (sys.executable, "-m", "deployments.standin")


def test_a_shell_named_python_is_not_the_server(nursery: Nursery, tmp_path: Path) -> None:
    """The first word of a command line is free to say anything: the file that runs counts as well."""
    script = tmp_path / "sglang" / "launch_server.py"
    script.parent.mkdir()
    script.write_text('"$@"; exit\n')
    standin = start_under(nursery, ["bash", "-c", 'exec -a python bash "$@"', "sh", str(script)])
    assert find_server(standin.url).pid != standin.pid
