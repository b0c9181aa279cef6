"""The product's steps over a stub, under Prefect, watched: seconds, memory, disk and CPU by stage as it goes.

The flow is `generate_dataset` without publishing and without the flow runs of its own that a big job spreads
over: all batches in this process, so that its CPU can be told apart.
"""

import asyncio
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tests.bench.load import MODEL, Load
from tests.bench.prefect_share import listening
from tests.bench.rounds import counters, stub
from tests.conftest import free_port, prefect_server

LOOKS = 60
"""Samples that are kept of a curve, evenly spaced over its rows."""

THREADS = {"MainThread": "event loop", "rawseq-journal": "journal", "rawseq-render": "rendering"}
"""Stage of a thread by the beginning of its name; the store's threads are told apart by call."""


class Watch(threading.Thread):
    """Samples this process until `done` is set.

    Args:
        folder: with the journals and the store.
        seconds: between two samples.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        super().__init__(name="watch", daemon=True)
        self.folder, self.seconds = folder, seconds
        self.run_: Any = None
        self.samples: list[dict[str, float]] = []
        self.calls: Counter[str] = Counter()
        self.done = threading.Event()
        self._process = psutil.Process()
        self._threads: dict[tuple[int, str], float] = {}
        self._children: dict[int, float] = {}
        self._before: Counter[str] = Counter()
        self._looking = threading.Lock()

    def begin(self) -> None:
        """Count CPU from now on."""
        with self._looking:
            self._look()
            self._before = Counter(self.cpu_by_stage())

    def run(self) -> None:
        """Sample."""
        while not self.done.wait(self.seconds):
            self.look()

    def look(self) -> None:
        """Take one sample."""
        with self._looking:
            self._look()

    def _look(self) -> None:
        names = {each.native_id: each.name for each in threading.enumerate()}
        for each in self._process.threads():
            name = names.get(each.id, "other")
            self._threads[each.id, name] = each.user_time + each.system_time
        memory = self._process.memory_info().rss
        for child in self._process.children(recursive=True):
            with suppress(psutil.Error):
                times = child.cpu_times()
                self._children[child.pid] = times.user + times.system
                memory += child.memory_info().rss
        if self.run_ is not None and self.run_.dispatch is not None:
            stats = self.run_.dispatch.stats()
            rows = {
                "rows": float(stats.finished),
                "ready": float(stats.ready),
                "in_flight": float(stats.in_flight),
            }
            sizes = {f"{name}_mb": tree_mb(self.folder / name) for name in ("journals", "out")}
            self.samples.append({"at": time.monotonic(), "rss_mb": memory / 2**20, **rows, **sizes})

    def cpu_by_stage(self) -> dict[str, float]:
        """Return CPU seconds: threads by name, the store's threads by what they were asked for."""
        found = Counter(self.calls)
        for (_, name), seconds in self._threads.items():
            stage = next(
                (stage for start, stage in THREADS.items() if name.startswith(start)), "other threads"
            )
            found[stage] += seconds
        found["other threads"] -= sum(self.calls.values())
        found["rendering"] += sum(self._children.values())
        return {name: round(max(0.0, used - self._before[name]), 3) for name, used in found.items()}

    def curve(self) -> list[dict[str, float]]:
        """Return at most `LOOKS` samples, evenly spaced, with seconds since the first."""
        step = max(1, len(self.samples) // LOOKS)
        return [each | {"at": round(each["at"] - self.samples[0]["at"], 2)} for each in self.samples[::step]]


def tree_mb(folder: Path) -> float:
    """Return the megabytes that the files below a folder take; files that vanish meanwhile count nothing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(parent, name)).st_size
    return total / 2**20


@contextmanager
def timed_calls(calls: Counter[str]) -> Iterator[None]:
    """Count the CPU time of the store threads' work by what it is."""
    from tasks.run import batch as batches
    from tasks.run import commit as committing

    stages = ((batches, "render", "reading prompts"), (batches, "check", "checks"))
    stages += ((committing, "upload", "shards"), (committing, "commit", "receipts"))
    before = [(module, name, getattr(module, name)) for module, name, _ in stages]
    for module, name, stage in stages:
        setattr(module, name, _timed(getattr(module, name), calls, stage))
    try:
        yield
    finally:
        for module, name, call in before:
            setattr(module, name, call)


def _timed(call: Callable[..., Any], calls: Counter[str], stage: str) -> Callable[..., Any]:
    def timed(*args: Any) -> Any:
        begun = time.thread_time()
        try:
            return call(*args)
        finally:
            calls[stage] += time.thread_time() - begun

    return timed


def write_prompts(path: Path, rows: int, words: int) -> None:
    """Write so many numbered prompts, of about `words` words."""
    tail = " ".join(f"item {number % 10}" for number in range(words // 2)).encode()
    with path.open("wb") as file:
        for first in range(0, rows, 10_000):
            numbers = range(first, min(rows, first + 10_000))
            file.write(b"".join(b'{"id":"q%d","prompt":"Number %d. %s"}\n' % (n, n, tail) for n in numbers))


def job(url: str, folder: Path, processes: int | None) -> dict[str, Any]:
    """Return the job: default settings."""
    return {
        "name": "pipeline",
        "model": MODEL.model_dump(),
        "prompts": {"sources": [str(folder / "prompts.jsonl")]},
        "servers": {"urls": [url]},
        "sampling": {"max_new_tokens": 65536},
        "batch": {"journal_dir": str(folder / "journals"), "render_processes": processes},
        "store": {"uri": str(folder / "out")},
    }


def watched(fields: dict[str, Any], watch: Watch, limit: float | None) -> dict[str, float]:
    """Run the steps, making rows for `limit` seconds at most; return when each was done, monotonic."""
    from prefect import flow

    from flows.chain import make_batches
    from tasks.job.spec import JobSpec
    from tasks.run.run import open_run
    from tasks.steps import ensure_servers, plan_batches, render_prompts

    times: dict[str, float] = {}

    @flow(name="bench-pipeline", persist_result=False)
    async def pipeline() -> None:
        async with open_run(JobSpec.model_validate(fields), f"bench-{os.getpid()}") as run:
            watch.run_ = run
            times["open"] = time.monotonic()
            pending = await plan_batches()
            times["planned"] = time.monotonic()
            await ensure_servers()
            times["ensured"] = time.monotonic()
            watch.begin()
            with suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    failures = await make_batches(pending, render_prompts)
                    assert not failures, failures
            times["made"] = time.monotonic()
            watch.look()

    watch.start()
    try:
        with timed_calls(watch.calls):
            asyncio.run(pipeline())
        assert watch.is_alive(), "the watch ended before what it watches: its figures are not whole"
    finally:
        watch.done.set()
    return times


def one(
    load: Load, rows: int, words: int, processes: int | None, limit: float | None, api: str
) -> dict[str, Any]:
    """Run once in this process; return times, curve and CPU."""
    import tempfile

    os.environ["PREFECT_API_URL"] = api
    server = listening(api)
    with tempfile.TemporaryDirectory(prefix="rawseq-bench-") as name, stub(load) as url:
        folder = Path(name)
        write_prompts(folder / "prompts.jsonl", rows, words)
        watch, before = Watch(folder, 0.25), _cpu(server)
        times = watched(job(url, folder, processes), watch, limit)
        seen = counters(url)
        cpu = watch.cpu_by_stage() | {"Prefect server": round(_cpu(server) - before, 3)}
    return {"times": times, "stub": seen, "cpu": cpu, "curve": watch.curve(), "samples": len(watch.samples)}


def _cpu(process: psutil.Process) -> float:
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def in_child(
    load: Load, rows: int, words: int, processes: int | None, limit: float | None, api: str
) -> dict[str, Any]:
    """Run once in a process of its own."""
    import subprocess

    asked = json.dumps([load.as_json(), rows, words, processes, limit, api])
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.pipeline", asked], capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"pipeline: exit {done.returncode}\n{done.stderr[-3000:]}")
    value: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return value


@contextmanager
def prefect(api: str | None) -> Iterator[str]:
    """Run a Prefect server unless `api` or RAWSEQ_BENCH_API names one; yield its URL."""
    import tempfile

    api = api or os.environ.get("RAWSEQ_BENCH_API")
    with ExitStack() as stack:
        if api is None:
            port = free_port()
            home = stack.enter_context(tempfile.TemporaryDirectory(prefix="rawseq-bench-"))
            stack.enter_context(prefect_server(Path(home), port))
            os.environ["PREFECT_HOME"] = home
            api = f"http://127.0.0.1:{port}/api"
        yield api


if __name__ == "__main__":
    text, *rest = json.loads(sys.argv[1])
    from tests.bench.load import read_load

    print(json.dumps(one(read_load(text), *rest)))
