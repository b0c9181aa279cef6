"""What a local restart refuses before its first signal, over real processes; only those started here."""

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest

from deployments.standin.launch import Standin
from tasks.errors import SurroundingsError
from tasks.fleet.ensure import ensure_servers
from tasks.sglang.restart.listener import port_of
from tasks.sglang.restart.process import find_server, is_server_command
from tasks.sglang.restart.supervisor import starts_again, unit_of
from tests.support.embedded import Nursery, fleet_settings, start_under

PARSER = ("--reasoning-parser", "qwen3")


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    """Servers of one test, and whatever was started in their place."""
    nursery = Nursery(tmp_path)
    yield nursery
    nursery.end_successors()


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


@contextmanager
def listening_at(host: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is no server and listens at one address."""
    code = (
        "import socket, sys; s = socket.socket(socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET); "
        "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); "
        "s.bind((sys.argv[1], int(sys.argv[2]))); s.listen(); print(flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, host, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process
    finally:
        process.communicate()


def test_a_server_at_another_address_is_not_the_one(nursery: Nursery) -> None:
    """Equal ports of two loopback addresses are two places: both are named, nothing is found."""
    standin = nursery.start()
    port = port_of(standin.url)
    with pytest.raises(SurroundingsError, match=rf"127\.0\.0\.2:{port}.*found 127\.0\.0\.1:{port}"):
        find_server(f"http://127.0.0.2:{port}")
    assert find_server(f"http://localhost:{port}").pid == standin.pid
    with listening_at("127.0.0.2", port), pytest.raises(SurroundingsError, match="expected an SGLang server"):
        find_server(f"http://127.0.0.2:{port}")


def test_a_server_of_all_addresses_is_found_by_each(nursery: Nursery) -> None:
    """A wildcard listener answers at every address of this host."""
    standin = start_under(nursery, (), "--host", "0.0.0.0")
    for host in ("127.0.0.1", "127.0.0.2", "localhost"):
        assert find_server(f"http://{host}:{port_of(standin.url)}").pid == standin.pid


def test_a_name_of_two_listeners_is_refused(nursery: Nursery) -> None:
    """`localhost` has two addresses, a tunnel may have the other one: neither is chosen."""
    standin = nursery.start()
    port = port_of(standin.url)
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6 loopback address")
    with listening_at("::1", port) as other:
        with pytest.raises(SurroundingsError, match=f"found process {other.pid}"):
            find_server(f"http://localhost:{port}")
        assert find_server(standin.url).pid == standin.pid


async def test_what_has_the_port_of_another_address_stays(nursery: Nursery) -> None:
    """A restart waits for its own address only: a tunnel at another one neither ends nor holds it up."""
    standin = nursery.start(*PARSER)
    with listening_at("127.0.0.2", port_of(standin.url)) as other:
        settings = fleet_settings(standin.url, restart="local")
        (report,) = await ensure_servers(settings)
        assert report.restarted is not None
        assert other.poll() is None


async def refuse_and_leave(standin: Standin, log_dir: Path, match: str) -> None:
    """A restart is refused with these words, and the server lives on as it was."""
    before = find_server(standin.url)
    settings = attrs.evolve(fleet_settings(standin.url, restart="local"), log_dir=log_dir)
    with pytest.raises(SurroundingsError, match=match):
        await ensure_servers(settings)
    assert find_server(standin.url) == before


def _file_for_folder(folder: Path, log: str) -> None:
    (folder / "logs").write_text("")


def _folder_for_file(folder: Path, log: str) -> None:
    (folder / "logs" / log).mkdir(parents=True)


@pytest.mark.parametrize("spoil", [_file_for_folder, _folder_for_file])
async def test_a_log_that_cannot_be_written_stops_no_server(
    nursery: Nursery, tmp_path: Path, spoil: Callable[[Path, str], None]
) -> None:
    """The log of the new process is opened before the old one gets a signal."""
    standin = nursery.start(*PARSER)
    spoil(tmp_path, f"rawseq-server-{port_of(standin.url)}.log")
    await refuse_and_leave(standin, tmp_path / "logs", "expected a log file that can be written")


async def test_a_folder_that_is_gone_stops_no_server(nursery: Nursery, tmp_path: Path) -> None:
    """The new process could not be started where the old one was: another folder of that name is not it."""
    folder = tmp_path / "started here"
    folder.mkdir()
    standin = start_under(nursery, (), *PARSER, cwd=folder)
    folder.rmdir()
    await refuse_and_leave(standin, tmp_path, "working folder .*started here")
    folder.mkdir()
    await refuse_and_leave(standin, tmp_path, "working folder .*started here")


@pytest.mark.parametrize(
    "spoil", [Path.unlink, lambda program: program.chmod(0o600)], ids=["gone", "no program"]
)
async def test_a_program_that_is_gone_stops_no_server(
    nursery: Nursery, tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    """Its environment was rebuilt since: what the command line names cannot be run any more."""
    program = tmp_path / "bin" / "python3"
    program.parent.mkdir()
    shutil.copy(os.path.realpath(sys.executable), program)
    home = os.path.realpath(sys.base_prefix)
    standin = start_under(nursery, ("env", f"PYTHONHOME={home}"), *PARSER, program=str(program))
    spoil(program)
    await refuse_and_leave(standin, tmp_path, "expected a program that can be run.*bin/python3")


async def test_without_proc_no_server_is_stopped(
    nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the kernel does not show whose files a process sees, nothing is risked."""
    standin = nursery.start(*PARSER)
    monkeypatch.setattr("tasks.sglang.restart.preflight.PROC", tmp_path / "no proc")
    await refuse_and_leave(standin, tmp_path, "cannot tell .*no proc.*servers.restart: command")


@pytest.mark.parametrize("existing", [False, True])
async def test_the_log_is_for_its_owner_only(nursery: Nursery, tmp_path: Path, existing: bool) -> None:
    """SGLang logs its arguments, keys too: nobody else may read them."""
    standin = nursery.start(*PARSER)
    log = tmp_path / f"rawseq-server-{port_of(standin.url)}.log"
    if existing:
        log.touch(0o644)
    settings = attrs.evolve(fleet_settings(standin.url, restart="local"), log_dir=tmp_path)
    (report,) = await ensure_servers(settings)
    assert report.restarted is not None
    assert report.restarted.log == log
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


@pytest.mark.parametrize("as_script", [False, True])
async def test_a_server_in_a_loop_is_not_stopped(nursery: Nursery, tmp_path: Path, as_script: bool) -> None:
    """The loop would start the old command line beside the new one: it is named, and nothing is stopped."""
    loop, script = 'while :; do "$@"; done', tmp_path / "keep.sh"
    script.write_text(f"{loop}\n")
    wrapper = ["bash", "-e", str(script)] if as_script else ["bash", "-ec", loop, "sh"]
    standin = start_under(nursery, wrapper, *PARSER)
    try:
        await refuse_and_leave(standin, tmp_path, f"process {standin.pid}, a shell in a loop")
    finally:
        os.killpg(standin.pid, signal.SIGKILL)  # the loop first: it would start the server again
        standin.process.wait()


@pytest.mark.parametrize(
    ("text", "again"),
    [
        ('while true; do "$@"; done', True),
        ("while :; do python -m sglang.launch_server --port 1; sleep 5; done", True),
        ("until python -m sglang.launch_server; do echo again; sleep 1; done", True),
        ("for ((;;)); do serve; done", True),
        ("while sleep 1; do start; done", True),
        ("while sleep 1; do $COMMAND; done", True),
        ("while sleep 1; do kill -0 $pid || serve & done", True),
        ("while :; do\n  if true; then\n    serve\n  fi\ndone", True),
        ("while :; do echo $(serve); done", True),
        ("until curl -s localhost:1/health; do sleep 1; done\nwait", False),
        ("serve &\nuntil curl -sf http://127.0.0.1:1/health >/dev/null; do\n  sleep 2\ndone\nwait $!", False),
        ("# while it loads\nwhile ! nc -z 127.0.0.1 1; do sleep 1; done", False),
        ("while kill -0 $pid 2>/dev/null; do sleep 5; done; echo ended", False),
        ("while :; do if test -e f; then break; fi; sleep 1; done", False),
        ("until curl -s localhost:1/health &>/dev/null; do echo waiting >&2; sleep 1; done 2>&1", False),
        ("while :; do curl -s localhost:1/start > f | sh; done", True),
        ("for each in 1 2; do serve; done", False),
        ("serve --stop until-end", True),
    ],
)
def test_a_loop_that_only_waits_starts_nothing(text: str, again: bool) -> None:
    """What stands inside the loop counts: a command that is not known to be harmless may be the server's."""
    assert starts_again(text) is again


async def test_a_server_in_a_script_is_restarted(nursery: Nursery, tmp_path: Path) -> None:
    """A script that waits for the server, and goes on after it, starts nothing again."""
    script = tmp_path / "start.sh"
    script.write_text('for each in 1; do "$@" & done\nuntil test -d /; do sleep 1; done\nwait\n')
    standin = start_under(nursery, ["bash", str(script)], *PARSER)
    (report,) = await ensure_servers(fleet_settings(standin.url, restart="local"))
    assert report.restarted is not None


@pytest.mark.parametrize(
    ("group", "unit"),
    [
        ("0::/system.slice/sglang@30000.service", "sglang@30000.service"),
        ("9:name=systemd:/system.slice/sglang.service\n0::/", "sglang.service"),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/sgl.service", "sgl.service"),
        ("0::/user.slice/user-1000.slice/session-3.scope", None),
        ("0::/user.slice/user-1000.slice/user@1000.service/tmux-spawn-1.scope", None),
        ("4:memory:/x.service\n0::/", None),
    ],
)
def test_a_unit_is_told_from_a_session(group: str, unit: str | None) -> None:
    """A service's processes are systemd's; a person's terminal lies in a scope, of a service or not."""
    assert unit_of(group) == unit
