"""Every bench runs, at a size that measures nothing."""

import json
import subprocess
import sys

import pytest

from tests.bench import __main__ as benches
from tests.bench.schedule import greedy
from tests.bench.sections import SECTIONS
from tests.conftest import ROOT


@pytest.mark.slow
def test_every_bench_runs_at_tiny_size(prefect_api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All clients make all their rows, and the page has a line for each; the share of Prefect: see below."""
    monkeypatch.setenv("RAWSEQ_BENCH_API", prefect_api)
    here = [name for name in SECTIONS if name != "prefect_share"]
    page = benches.report(benches.run(here, quick=True))
    lines = ("bare", "rawseq whole", "AsyncOpenAI", "SpecForge-like", "httpx", "barrier per 4 windows")
    for name in (*lines, "whole path / bare fetch", "short, 100,000,000 rows", "status", "audit"):
        assert f"| {name}" in page, page
    for name in here:
        assert f"## {SECTIONS[name].title}" in page


def test_prefect_share_runs_at_tiny_size(rawseq_env: dict[str, str], prefect_api: str) -> None:
    """It runs the product's flow and says what each batch cost the client and the server."""
    command = [sys.executable, "-m", "tests.bench.prefect_share", "--batches=2", "--rows=5", "--ids=20"]
    command += ["--rounds=1"]
    done = subprocess.run(
        [*command, "--api", prefect_api],
        cwd=ROOT,
        env=rawseq_env,
        capture_output=True,
        text=True,
        check=False,
        timeout=480,  # beside other work
    )
    assert done.returncode == 0, done.stderr[-3000:]
    figures = json.loads(done.stdout)
    assert (figures["task_runs"], figures["task_runs_per_million_rows"]) == (13, 1_000_000)
    assert figures["client_ms_per_batch"] > 0
    assert 0 < figures["share_of_client_cpu"] < 1


@pytest.mark.parametrize(
    ("times", "speeds", "expected"),
    [
        pytest.param([3.0, 1.0, 1.0, 1.0], [1.0, 1.0], 3.0, id="short rows fill the other slot"),
        pytest.param([1.0, 1.0, 3.0], [1.0, 1.0], 4.0, id="a long row last"),
        pytest.param([1.0] * 5, [4.0, 1.0], 1.0, id="a fast slot takes four of five"),
    ],
)
def test_greedy_schedule(times: list[float], speeds: list[float], expected: float) -> None:
    """The next row goes to the slot that is free first; worked out by hand."""
    assert greedy(times, speeds) == pytest.approx(expected)
