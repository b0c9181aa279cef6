"""Finding, stopping and starting local servers, over real processes; only those started here."""

import asyncio
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import psutil
import pytest

from deployments.standin.launch import ROOT, Standin
from tasks.errors import LaterError, SurroundingsError, UnfaithfulError
from tasks.fleet.dispatch import Dispatch
from tasks.fleet.ensure import ServerReport, ensure_servers, wait_ready
from tasks.fleet.fleet import Fleet
from tasks.job.spec import StoreSpec
from tasks.ledger.server_lock import server_locks
from tasks.sglang.client import Access, ServerClient
from tasks.sglang.restart.idle import BusyError
from tasks.sglang.restart.process import (
    command_without,
    find_server,
    is_server_command,
    place_of,
    without_flags,
)
from tasks.sglang.restart.restart import _refuse_many_nodes, log_tail, restart_locally
from tasks.sglang.restart.revive import revive
from tests.support.embedded import MODEL, SAMPLING, VOCAB, Nursery, fleet_settings, prompt, rows
from tests.support.scripted import ListLane

PARSER = ("--reasoning-parser", "qwen3")


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    """Servers of one test, and whatever was started in their place."""
    nursery = Nursery(tmp_path)
    yield nursery
    nursery.end_successors()


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("python -m sglang --reasoning-parser qwen3 --port 1", "python -m sglang --port 1"),
        ("sglang serve --reasoning-parser=qwen3 --port 1", "sglang serve --port 1"),
        ("sglang serve --port 1 --reasoning_parser kimi_k2", "sglang serve --port 1"),
        ("sglang serve --tool-call-parser kimi_k2", "sglang serve --tool-call-parser kimi_k2"),
        ("sglang serve --port 1", "sglang serve --port 1"),
        (
            "sglang serve --reasoning-parser q --enable-strict-thinking",
            "sglang serve --enable-strict-thinking",
        ),
    ],
    ids=[
        "two words",
        "one word",
        "underscore",
        "another parser stays",
        "nothing to take off",
        "switch stays",
    ],
)
def test_the_parser_is_taken_off_a_command(argv: str, expected: str) -> None:
    """Flag and value go, all else stays in order."""
    assert shlex.join(without_flags(argv.split())) == expected
    assert command_without(argv) == expected


@pytest.mark.parametrize(
    ("argv", "server"),
    [
        ("/venv/bin/python -m sglang.launch_server --port 1", True),
        ("python3 /venv/bin/sglang serve --model m", True),
        ("python -m deployments.standin --port 1", True),
        ("python /opt/sglang/launch_server.py", True),
        ("python -m sglang.bench_serving", False),
        ("python /venv/bin/sglang generate", False),
        ("nginx -g sglang.launch_server", False),
        ("python -m http.server", False),
    ],
)
def test_only_servers_are_servers(argv: str, server: bool) -> None:
    """A benchmark, a proxy or anything else that mentions SGLang is none."""
    assert is_server_command(argv.split()) is server


async def _ensure(standin: Standin, **spec: object) -> ServerReport:
    (report,) = await ensure_servers(fleet_settings(standin.url, **spec))  # type: ignore[arg-type]
    return report


async def test_a_local_server_is_restarted_without_its_parser(nursery: Nursery) -> None:
    """Same command but the flag, same environment and folder; the old process is gone."""
    standin = nursery.start(*PARSER)
    before = find_server(standin.url)
    report = await _ensure(standin, restart="local")
    after = find_server(standin.url)
    assert report.restarted is not None
    assert (report.info.reasoning_parser, report.restarted.process) == (None, after)
    assert after.argv == without_flags(before.argv) != before.argv
    assert (after.env, after.cwd) == (before.env, before.cwd)
    assert not psutil.pid_exists(before.pid) or psutil.Process(before.pid).status() == psutil.STATUS_ZOMBIE
    told = "\n".join(report.lines())
    assert f"before  {before.command}" in told
    assert f"now     {after.command}" in told


async def test_without_leave_to_restart_the_run_stops_with_evidence(nursery: Nursery) -> None:
    """`restart: none`: what the chat channel loses, and the arguments to use; the server is left as it is."""
    standin = nursery.start(*PARSER)
    with pytest.raises(UnfaithfulError, match=r"(?s)LOST chat.*reasoning_content.*Arguments:"):
        await _ensure(standin)
    assert find_server(standin.url).pid == standin.pid


async def test_a_parser_may_be_allowed_when_ids_are_raw(nursery: Nursery) -> None:
    """`allow_if_faithful`: the probe decides, the server stays as it is."""
    standin = nursery.start(*PARSER)
    report = await _ensure(standin, reasoning_parser="allow_if_faithful")
    assert (report.info.reasoning_parser, report.probe.verdict) == ("qwen3", "faithful")


async def test_two_runs_restart_a_server_once(nursery: Nursery) -> None:
    """Both find the parser on; one restarts, the other finds it off."""
    standin = nursery.start(*PARSER)
    both = await asyncio.gather(*(_ensure(standin, restart="local") for _ in range(2)))
    assert sorted(report.restarted is not None for report in both) == [False, True]


@asynccontextmanager
async def _no_host_lock(url: str, seconds: float) -> AsyncIterator[None]:
    yield


async def test_runs_on_two_hosts_restart_a_server_once(
    nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the store is common to them: one stops and starts the server, the other waits and finds it fit."""
    monkeypatch.setattr("tasks.sglang.restart.restart.restart_lock", _no_host_lock)
    standin, said = nursery.start(*PARSER), []
    store = StoreSpec(uri=str(tmp_path / "store"))
    settings = [
        attrs.evolve(fleet_settings(standin.url, restart="local"), lock=server_locks(store, f"run-{n}", 30.0))
        for n in range(2)
    ]
    both = await asyncio.gather(*(ensure_servers(each, said.append) for each in settings))
    reports = [report for (report,) in both]
    assert sorted(report.restarted is not None for report in reports) == [False, True]
    assert [report.probe.verdict for report in reports] == ["faithful", "faithful"]
    assert [line.split(": ")[1].split()[0] for line in said if "process" in line] == ["stopping"]
    (lock,) = (tmp_path / "store" / "server-locks").rglob("*.json")
    data = json.loads(lock.read_text())
    assert (data["released"], data["server"]) == (True, place_of(standin.url))


async def test_a_run_that_lost_its_lock_stops_nothing(nursery: Nursery) -> None:
    """Right before the signal the lock turns out to be another's: the server stays as it is."""
    standin = nursery.start(*PARSER)

    async def lost() -> None:
        raise LaterError("another run has it")

    async with ServerClient(standin.url, Access()) as client:
        spec = fleet_settings(standin.url, restart="local").servers
        with pytest.raises(LaterError, match="another run"):
            await restart_locally(client, spec, still_ours=lost)
    assert find_server(standin.url).pid == standin.pid


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("http://127.0.0.1:30000", f"{socket.gethostname().lower()}-30000"),
        ("http://localhost:30000/", f"{socket.gethostname().lower()}-30000"),
        ("http://[::1]:30000", f"{socket.gethostname().lower()}-30000"),
        ("http://GPU1.example:30000", "gpu1.example-30000"),
        ("https://10.0.0.7/sgl/a", "10.0.0.7-443-sgl-a"),
        ("http://[fe80::1]:1", "fe80--1-1"),
    ],
)
def test_a_server_has_one_name_for_all_hosts(url: str, place: str) -> None:
    """Host and port; a loopback URL is named by this host."""
    assert place_of(url) == place


async def test_further_flags_go_when_policy_says_so(nursery: Nursery) -> None:
    """`also_remove`: tool parser and strict thinking go with the reasoning parser; all else stays."""
    standin = nursery.start(
        *PARSER, "--enable-strict-thinking", "--tool-call-parser=qwen25", "--random-seed", "7"
    )
    before = find_server(standin.url)
    report = await _ensure(
        standin, restart="local", also_remove=["tool_call_parser", "enable_strict_thinking"]
    )
    info, after = report.info, find_server(standin.url)
    assert (info.reasoning_parser, info.tool_call_parser) == (None, None)
    assert not info.flags["enable_strict_thinking"]
    gone = {*PARSER, "--enable-strict-thinking", "--tool-call-parser=qwen25"}
    assert list(after.argv) == [word for word in before.argv if word not in gone]
    assert report.restarted is not None
    assert "--tool-call-parser, --enable-strict-thinking" in report.restarted.lines()[0]


async def test_further_flags_stay_when_policy_is_silent(nursery: Nursery) -> None:
    """By default a tool parser is no reason to touch a server; forbidden, it is shown with the command."""
    standin = nursery.start("--tool-call-parser", "qwen25")
    report = await _ensure(standin, restart="local")
    assert (report.restarted, report.info.tool_call_parser) == (None, "qwen25")
    with pytest.raises(UnfaithfulError, match=r"(?s)--tool-call-parser qwen25 is on.*Arguments:") as caught:
        await _ensure(standin, also_remove=["tool_call_parser"])
    assert "qwen25" not in str(caught.value).rsplit("Arguments:", 1)[1]
    assert find_server(standin.url).pid == standin.pid


@pytest.mark.parametrize("flags", [("--nnodes", "2"), ("--nnodes=2",)])
async def test_one_node_of_several_is_not_restarted(nursery: Nursery, flags: tuple[str, ...]) -> None:
    """`local` leaves a multi-node server alone: its nodes must be restarted together."""
    standin = nursery.start(*PARSER, *flags)
    with pytest.raises(SurroundingsError, match="2 nodes"):
        await _ensure(standin, restart="local")
    assert standin.process.poll() is None


async def test_one_node_that_only_its_info_shows_is_not_restarted(nursery: Nursery) -> None:
    """A --config file may say `nnodes`: what the server reports counts as well."""
    standin = nursery.start(*PARSER)
    async with ServerClient(standin.url, Access()) as client:
        info = await client.info()
        flags = dict(info.flags) | {"nnodes": 2}
        with pytest.raises(SurroundingsError, match="2 nodes"):
            _refuse_many_nodes(attrs.evolve(info, flags=flags))


async def test_a_cancelled_restart_leaves_a_server_behind(nursery: Nursery) -> None:
    """Cancelled while the old one stops: the new one is started all the same."""
    standin = nursery.start(*PARSER)
    stopping = asyncio.Event()
    async with ServerClient(standin.url, Access()) as client:
        spec = fleet_settings(standin.url, restart="local").servers
        work = restart_locally(client, spec, say=lambda line: stopping.set())
        restarting = asyncio.ensure_future(work)
        async with asyncio.timeout(120):
            await stopping.wait()
        await asyncio.sleep(0.05)  # SIGTERM is on its way
        restarting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await restarting
        await wait_ready(client, 120.0)
    assert "--reasoning-parser" not in find_server(standin.url).argv


async def _crash_and_go_on(standin: Standin, *, again: bool, limit: float) -> tuple[ListLane, Fleet]:
    """Let a fleet take the parser off, kill what it started, and make rows after that."""
    settings = fleet_settings(standin.url, restart="local", restart_crashed=again)
    lane = ListLane(rows(12))
    async with Fleet(settings) as fleet:
        (report,) = await fleet.ensure()
        assert report.restarted is not None
        assert report.restarted.process is not None
        spec = settings.servers.model_copy(update={"ready_timeout_seconds": limit})
        fleet.settings = attrs.evolve(settings, servers=spec)
        psutil.Process(report.restarted.process.pid).kill()
        async with Dispatch(fleet, SAMPLING, VOCAB, 5) as dispatch:
            await dispatch.run(lane)
    return lane, fleet


async def test_a_server_that_this_run_started_is_started_again(nursery: Nursery) -> None:
    """`restart_crashed`: killed after the restart, it comes back without the parser; all rows are made."""
    standin = nursery.start(*PARSER)
    lane, fleet = await _crash_and_go_on(standin, again=True, limit=180.0)
    assert len(lane.by_row()) == 12
    now = find_server(standin.url)
    assert fleet.servers[0].started == now
    assert "--reasoning-parser" not in now.argv


async def test_a_server_that_ends_is_waited_for_by_default(nursery: Nursery) -> None:
    """Nobody said that it may be started again: the job waits, and then says that no server answers."""
    standin = nursery.start(*PARSER)
    with pytest.raises(SurroundingsError, match="no server answers"):
        await _crash_and_go_on(standin, again=False, limit=6.0)
    with pytest.raises(SurroundingsError, match="found nothing"):
        find_server(standin.url)


async def test_what_lives_or_has_a_successor_is_not_started_again(nursery: Nursery) -> None:
    """A living process, or another that has its port by now: nothing is done."""
    standin = nursery.start()
    settings, before = fleet_settings(standin.url, restart="local"), find_server(standin.url)
    async with ServerClient(standin.url, Access()) as client:
        assert await revive(client, before, settings, print) is None
        standin.kill()
        nursery.start_again(standin)
        successor = find_server(standin.url)
        assert await revive(client, before, settings, print) is None
    assert find_server(standin.url).pid == successor.pid != before.pid


async def until_running(client: ServerClient) -> None:
    """Return when the server runs a request."""
    async with asyncio.timeout(120):
        while True:
            loads = await client.loads()
            if loads is not None and loads.running:
                return
            await asyncio.sleep(0.05)  # polling another process


async def test_a_server_that_works_for_others_is_left_alone(nursery: Nursery) -> None:
    """Foreign work in flight: refused after the drain time, unless the job says otherwise."""
    standin = nursery.start(*PARSER)
    async with ServerClient(standin.url, Access()) as client:
        long = {"max_new_tokens": 3900, "ignore_eos": True}
        body = {"input_ids": prompt("Hello!").tolist(), "sampling_params": long}
        working = asyncio.ensure_future(client.ask("/generate", body))
        await until_running(client)
        spec = fleet_settings(standin.url, restart="local", drain_timeout_seconds=0.5).servers
        with pytest.raises(BusyError, match="it serves others"):
            await restart_locally(client, spec)
        assert find_server(standin.url).pid == standin.pid
        done = await restart_locally(client, spec.model_copy(update={"restart_busy": True}))
        assert done is not None
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def test_a_server_that_does_not_come_back_shows_its_log(nursery: Nursery, tmp_path: Path) -> None:
    """The model is gone when it is started again: status and last lines of the log are in the error."""
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    standin = nursery.start(*PARSER, "--model-path", str(model))
    (model / "config.json").unlink()
    settings = attrs.evolve(fleet_settings(standin.url, restart="local"), log_dir=tmp_path)
    with pytest.raises(SurroundingsError, match=r"(?s)ended with status 1.*config\.json"):
        await ensure_servers(settings)


def test_secrets_of_the_command_are_not_in_the_log_tail(tmp_path: Path) -> None:
    """SGLang prints its arguments at start, keys too: they are replaced."""
    (tmp_path / "log").write_text("server_args=(api_key='sk-1') --admin-api-key sk-2\n")
    told = log_tail(tmp_path / "log", {"sk-1"})
    assert "server_args" in told
    assert "sk-1" not in told
    assert "sk-2" not in told


@pytest.mark.process
def test_what_is_no_server_is_not_touched() -> None:
    """A listening process that is not SGLang, a free port, a foreign host: refused, with what was found."""
    code = (
        "import socket, sys; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); "
        "print(s.getsockname()[1], flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    port = int(process.stdout.readline())
    try:
        with pytest.raises(SurroundingsError, match="expected an SGLang server"):
            find_server(f"http://127.0.0.1:{port}")
        assert process.poll() is None
    finally:
        process.communicate()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(SurroundingsError, match="found nothing"):
            find_server(f"http://127.0.0.1:{free.getsockname()[1]}")
    with pytest.raises(SurroundingsError, match="loopback"):
        find_server("http://192.0.2.1:30000")


async def test_commands_of_the_user_restart_a_server(nursery: Nursery, tmp_path: Path) -> None:
    """`restart: command`: stop and start as the job says, waited for, checked, probed."""
    standin = nursery.start(*PARSER)
    port = standin.url.rsplit(":", 1)[1]
    start = tmp_path / "start.sh"
    start.write_text(
        f"cd {ROOT}\n"
        f"setsid {sys.executable} -m deployments.standin --host $1 --port $2 "
        f">{tmp_path}/log 2>&1 </dev/null &\n"
    )
    stop = f"kill {standin.pid}"
    commands = {"stop": stop, "start": f"sh {start} {{host}} {{port}}"}
    report = await _ensure(standin, restart="command", restart_commands=commands)
    assert report.info.reasoning_parser is None
    assert report.restarted is not None
    assert report.restarted.now == f"{stop}; sh {start} 127.0.0.1 {port}"
    assert os.getpgid(find_server(standin.url).pid) != os.getpgid(0)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("systemctl --user restart sglang@{port}.service", "--user restart sglang@{port}.service"),
        ("docker restart 'sglang {port}'", "restart sglang {port}"),
        ("ssh -o BatchMode=yes {host} scontrol requeue sgl-{port}",
         "-o BatchMode=yes 127.0.0.1 scontrol requeue sgl-{port}"),
    ],
    ids=["systemd unit", "container", "scheduler job over ssh"],
)  # fmt: skip
async def test_a_supervisor_of_the_user_restarts_a_server(
    nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str, expected: str
) -> None:
    """The user's template is run word by word, without a shell; scripts stand for those programs."""
    standin = nursery.start(*PARSER)
    port, program = standin.url.rsplit(":", 1)[1], tmp_path / template.split()[0]
    program.write_text(
        "#!/bin/sh\n"
        f'echo "$*" >{tmp_path}/said\n'
        f"kill {standin.pid}; while kill -0 {standin.pid} 2>/dev/null; do sleep 0.1; done; cd {ROOT}\n"
        f"setsid {sys.executable} -m deployments.standin --host 127.0.0.1 --port {port} "
        f">{tmp_path}/log 2>&1 </dev/null &\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    reaping = asyncio.ensure_future(asyncio.to_thread(standin.process.wait))  # as its supervisor would
    report = await _ensure(standin, restart="command", restart_commands={"restart": template})
    await reaping
    assert (tmp_path / "said").read_text().strip() == expected.format(port=port)
    assert (report.info.reasoning_parser, report.probe.verdict) == (None, "faithful")


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("false", "ended with status 1"),
        ("no-such-program-here", "cannot run"),
        ("echo {nobody}", "restart_commands"),
    ],
)
async def test_a_command_that_fails_is_shown(nursery: Nursery, command: str, word: str) -> None:
    """The command, its status and its output are in the error."""
    standin = nursery.start(*PARSER)
    with pytest.raises(SurroundingsError, match=word):
        await _ensure(standin, restart="command", restart_commands={"restart": command})
