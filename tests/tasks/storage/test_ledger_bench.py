"""The ledger's benchmark runs, and at small sizes too its cost is linear and its memory flat."""

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench" / "ledger.py"


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
