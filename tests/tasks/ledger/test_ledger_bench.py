"""The ledger's benchmark runs, and at small sizes too its cost is linear and its memory flat."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "ledger.py"


@pytest.mark.process
def test_linear_and_flat(tmp_path: Path) -> None:
    """Ten times the rows cost at most fifteen times the time, and hardly more memory."""
    command = [sys.executable, str(BENCH), "--sizes", "3000", "30000", "--root", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = {(r["phase"], r["rows"]): r for r in json.loads(done.stdout.splitlines()[-1])}
    assert len(results) == 8
    for phase in ("plan", "commit", "resume", "status"):
        small, large = results[phase, 3000], results[phase, 30000]
        assert (small["batches"], large["batches"]) == (12, 120)
        assert large["peak_mb"] <= 1.2 * small["peak_mb"]
        assert large["cpu_seconds"] <= 15 * max(small["cpu_seconds"], 0.05)


@pytest.mark.process
def test_the_audit_in_bounded_memory(tmp_path: Path) -> None:
    """Reading eight times the rows back takes hardly more memory, and says that all of them are good."""
    command = [sys.executable, str(BENCH.with_name("audit.py")), "--sizes", "1000", "8000"]
    done = subprocess.run([*command, "--root", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    small, large = (r for r in json.loads(done.stdout.splitlines()[-1]) if r["phase"] == "audit")
    assert (small["rows"], large["rows"]) == (1000, 8000)
    assert large["peak_mb"] <= 1.2 * small["peak_mb"]


@pytest.mark.process
def test_the_bench_of_syncs(tmp_path: Path) -> None:
    """A plain file with a sync per row has one for each; the journal as shipped needs far fewer."""
    command = [sys.executable, str(BENCH.with_name("journal.py")), "--rows", "200", "--rounds", "1"]
    done = subprocess.run([*command, "--root", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    rows_a_sync = {
        name: r["rows_per_second"] / r["syncs_per_second"]
        for name, r in result.items()
        if r["syncs_per_second"]
    }
    shipped = next(share for name, share in rows_a_sync.items() if "as shipped" in name)
    assert rows_a_sync["plain file, a sync per row"] == pytest.approx(1)
    assert shipped >= 10
