"""Two servers on the same model folder: the stand-in, and a genuine SGLang on the CPU.

The genuine one is `RAWSEQ_SGLANG_URL`, or is started with `RAWSEQ_SGLANG_PYTHON` (the python of an
environment that has it). Without either, tests marked `sglang` are left out, and the stand-in is held to
what the genuine one said when `genuine.json` was recorded. One start serves all: test_main_flow.py, which
restarts it without its parser, runs last.
"""

import asyncio
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from deployments.standin.launch import ROOT, free_port, running_standin_sync
from tasks.errors import SurroundingsError
from tasks.sglang.restart.process import find_server
from tasks.sglang.restart.stop import stop_server

MODEL = ROOT / "deployments" / "standin" / "model"
FLAGS = ("--reasoning-parser", "qwen3", "--max-running-requests", "4", "--max-total-tokens", "12000")
GENUINE_FLAGS = (
    "--device cpu --attention-backend torch_native --disable-overlap-schedule --disable-cuda-graph "
    "--dtype float32 --mem-fraction-static 0.2"
)
GENUINE_ENV = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "HF_HUB_OFFLINE": "1",
    "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",
    "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0",
    "OMP_NUM_THREADS": "1",  # a pool that spins would starve the tests on two cores
    "TORCHDYNAMO_DISABLE": "1",  # compiling takes longer than all that the tests generate
}
START_SECONDS = 540.0  # one to five minutes on two cores


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave tests of the genuine server out when none was named, and those of an older one likewise."""
    genuine = bool(os.environ.get("RAWSEQ_SGLANG_URL") or os.environ.get("RAWSEQ_SGLANG_PYTHON"))
    older = bool(os.environ.get("RAWSEQ_SGLANG_OLDER"))
    left_out = [
        item
        for item in items
        if item.get_closest_marker("sglang")
        and not (genuine and (older or item.path.name != "test_older.py"))
    ]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: item.path.name == "test_main_flow.py")


@pytest.fixture(scope="session")
def standin_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The stand-in with the parser on."""
    log = tmp_path_factory.mktemp("standin") / "log"
    with running_standin_sync(list(FLAGS), log) as url:
        yield url


@pytest.fixture(scope="session")
def genuine_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The genuine server with the parser on."""
    if url := os.environ.get("RAWSEQ_SGLANG_URL"):
        yield url.rstrip("/")
        return
    folder = tmp_path_factory.mktemp("sglang")
    process, url = start_genuine(os.environ["RAWSEQ_SGLANG_PYTHON"], folder, FLAGS)
    try:
        wait_until_ready(url, process, folder / "log")
        yield url
    finally:
        with suppress(SurroundingsError):  # whatever was started in its place
            asyncio.run(stop_server(find_server(url), 5.0))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def start_genuine(python: str, folder: Path, flags: tuple[str, ...]) -> tuple[subprocess.Popen[bytes], str]:
    """Start a genuine SGLang on the CPU in a session of its own.

    The wheel's kernels need CUDA; their loader's last resort is a plain `import common_ops`, so an empty
    module of that name lets it start without them (SGLang 0.5.23).
    """
    (folder / "common_ops.py").write_text("")
    port = free_port()
    env = os.environ | GENUINE_ENV | {"PYTHONPATH": str(folder)}
    command = [python, "-m", "sglang.launch_server", "--model-path", str(MODEL), "--port", str(port)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *GENUINE_FLAGS.split(), *flags],
            env=env,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    return process, f"http://127.0.0.1:{port}"


def wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when `/health` is 200; fail with the end of the log when the process dies or time runs out."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=25) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(1.0)  # polling a server that starts
    raise AssertionError(f"{url} did not become ready:\n{log.read_text(errors='replace')[-3000:]}")
