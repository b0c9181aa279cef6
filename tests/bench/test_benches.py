"""Every bench runs, at a size that measures nothing."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deployments.standin.launch import start_standin
from tests.bench import __main__ as benches
from tests.bench.schedule import greedy
from tests.bench.sections import SECTIONS
from tests.conftest import ROOT

LINES = {
    "hot_path": ("bare", "rawseq whole", "AsyncOpenAI", "SpecForge-like", "httpx", "whole path / bare fetch"),
    "schedule": ("barrier per 4 windows",),
    "startup": (),
    "render": (),
    "check_tokens": (),
    "scale": ("short, 100,000,000 rows",),
    "ledger": ("status",),
    "journal": (),
    "audit": ("audit",),
}
"""Section to lines that its table must have, among others."""


@pytest.mark.parametrize("name", [name for name in SECTIONS if name != "prefect_share"])
def test_a_bench_runs_at_tiny_size(name: str, prefect_api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clients make all their rows, and the page has its heading and lines; Prefect's share: see below."""
    monkeypatch.setenv("RAWSEQ_BENCH_API", prefect_api)
    page = benches.report(benches.run([name], quick=True))
    assert f"## {SECTIONS[name].title}" in page
    for line in LINES[name]:
        assert f"| {line}" in page, page


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


def test_logprobs_share_runs_by_itself(tmp_path: Path) -> None:
    """It asks a server as often as it says, finds one value per id, and needs neither us nor our folder."""
    standin = start_standin([], tmp_path / "standin.log")
    try:
        script = shutil.copy(ROOT / "tests" / "bench" / "logprobs_share.py", tmp_path)
        command = [
            sys.executable,
            "-I",
            script,
            "--url",
            standin.url,
            "--requests=6",
            "--ids=8",
            "--rounds=2",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    finally:
        standin.end()
    assert done.returncode == 0, done.stderr[-3000:]
    figures = json.loads(done.stdout)
    assert figures["ratios"].keys() == {"0", "0.02", "0.1", "1"}
    for found in figures["rounds"]:
        assert [found[share]["asked"] for share in ("0", "1")] == [0, 6]
        assert len({told["tokens"] for told in found.values()}) == 1
        assert not any(told["not_one_value_per_id"] for told in found.values())
    assert figures["ratios"]["0"] == [1.0, 1.0]
    assert "| 0.02 |" in done.stderr


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
