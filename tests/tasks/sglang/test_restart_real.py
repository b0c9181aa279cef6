"""Local restarts beside what people start servers with: tmux, namespaces, loops (`make test-restart`)."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import psutil
import pytest

from deployments.standin.launch import ROOT, free_port
from tasks.errors import SurroundingsError
from tasks.fleet.ensure import ServerReport, ensure_servers, wait_ready
from tasks.sglang.client import Access, ServerClient
from tasks.sglang.restart.process import ServerProcess, find_server
from tasks.sglang.restart.stop import stop_server
from tests.support.embedded import Nursery, fleet_settings, start_under

pytestmark = [pytest.mark.restart, pytest.mark.process]

PARSER = ("--reasoning-parser", "qwen3")

Tmux = Callable[..., str]


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    """Servers of one test, and whatever was started in their place."""
    nursery = Nursery(tmp_path)
    yield nursery
    nursery.end_successors()


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    """A tmux server of this test's own, in which somebody else works already."""

    def call(*words: str) -> str:
        command = ["tmux", "-f", "/dev/null", "-S", str(tmp_path / "tmux"), *words]
        env = {key: value for key, value in os.environ.items() if key != "TMUX"}
        env |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout

    call("new-session", "-d", "-s", "work", "sleep 1000")
    yield call
    call("kill-server")


def server_words(port: int) -> list[str]:
    """Return the command line of a server."""
    return [sys.executable, "-m", "deployments.standin", "--host", "127.0.0.1", "--port", str(port), *PARSER]


async def served(port: int) -> ServerProcess:
    """Return the server at a port once it serves."""
    url = f"http://127.0.0.1:{port}"
    async with ServerClient(url, Access()) as client:
        await wait_ready(client, 100.0)
    return find_server(url)


async def restart(server: ServerProcess, folder: Path) -> ServerReport:
    """Have a server made fit by a restart."""
    settings = attrs.evolve(fleet_settings(server.url, restart="local"), log_dir=folder)
    (report,) = await ensure_servers(settings)
    return report


async def test_tmux_and_its_sessions_outlive_a_restart(tmux: Tmux, tmp_path: Path) -> None:
    """The server was started as tmux's own command line: the server alone is stopped and started again."""
    port = free_port()
    tmux("new-session", "-d", "-s", "sglang", *server_words(port))
    before, of_tmux = await served(port), tmux("display-message", "-p", "#{pid}").strip()
    try:
        report = await restart(before, tmp_path)
        assert report.restarted is not None
        assert find_server(before.url).pid != before.pid
        assert tmux("display-message", "-p", "#{pid}").strip() == of_tmux
        assert tmux("list-sessions", "-F", "#{session_name}").split() == ["work"]
    finally:
        await stop_server(find_server(before.url), 5.0)


async def test_the_server_that_begins_tmux_is_not_tmux(tmp_path: Path) -> None:
    """`tmux new -d … sglang.launch_server` makes the tmux server itself, with those words for its own."""
    port, socket = free_port(), str(tmp_path / "first")
    env = {key: value for key, value in os.environ.items() if key != "TMUX"}
    env |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    words = ["tmux", "-f", "/dev/null", "-S", socket]
    subprocess.run([*words, "new", "-d", "-s", "first", *server_words(port)], env=env, check=True)  # noqa: ASYNC221
    subprocess.run([*words, "new", "-d", "-s", "work", "sleep 1000"], env=env, check=True)  # noqa: ASYNC221
    before = await served(port)
    top = psutil.Process(before.pid).parents()[0]
    assert "deployments.standin" in top.cmdline()
    try:
        report = await restart(before, tmp_path)
        assert report.restarted is not None
        assert top.is_running()
        assert find_server(before.url).pid != before.pid
    finally:
        await stop_server(find_server(before.url), 5.0)
        top.kill()


async def test_a_loop_in_tmux_is_left_alone(tmux: Tmux, tmp_path: Path) -> None:
    """A script that starts its server again and again: refused, with what to write; the same one runs."""
    port, script = free_port(), tmp_path / "keep.sh"
    script.write_text('while :; do\n  "$@"\n  sleep 0.1\ndone\n')
    tmux("new-session", "-d", "-s", "sglang", "bash", str(script), *server_words(port))
    before = await served(port)
    with pytest.raises(SurroundingsError, match=r"a shell in a loop\. Set servers\.restart: command"):
        await restart(before, tmp_path)
    assert find_server(before.url) == before
    tmux("kill-session", "-t", "sglang")  # the loop with its server


@pytest.fixture
def mount_namespace() -> list[str]:
    """Words that run what follows them in a mount namespace of its own."""
    words = ["unshare", "-m" if os.getuid() == 0 else "-rm"]
    if not shutil.which(words[0]) or subprocess.run([*words, "true"], check=False).returncode != 0:
        pytest.skip("needs unshare, and leave to make a mount namespace")
    return words


async def test_a_server_with_a_file_system_of_its_own_is_not_stopped(
    nursery: Nursery, tmp_path: Path, mount_namespace: list[str]
) -> None:
    """As in a container: the same paths are other files there; what to write into the job is said."""
    before = find_server(start_under(nursery, mount_namespace, *PARSER).url)
    with pytest.raises(
        SurroundingsError, match=r"(?s)mount namespace.*servers.restart: command.*\n  restart_commands: "
    ):
        await restart(before, tmp_path)
    assert find_server(before.url) == before
