"""`rawseq up`: one stack per folder, on loopback, behind a password if wanted, gone after Ctrl-C."""

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.browser.conftest import Up, start_up, stop_up, until
from tests.support.prefect_api import RefusedError


def listening(process: psutil.Process) -> set[str]:
    """Return the addresses that a process and its children listen on."""
    return {
        connection.laddr.ip
        for each in [process, *process.children(recursive=True)]
        for connection in each.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    }


@pytest.mark.timeout(1800)
def test_a_stack_from_start_to_ctrl_c(tmp_path: Path) -> None:
    """A second `up` tells of the first; the API wants the made-up password; Ctrl-C cancels the run."""
    started = start_up(tmp_path, "--auth")
    assert started.process is not None
    kept = started.folder / "api-auth"
    auth = kept.read_text()
    assert (kept.stat().st_mode & 0o777, auth.partition(":")[0]) == (0o600, "rawseq")
    try:
        second = subprocess.run(
            [sys.executable, "-m", "deployments.cli.main", "up", "--json"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert second.returncode == 0, second.stderr
        assert f"already running as process {started.process.pid}" in second.stderr
        assert json.loads(second.stdout) == started.addresses
        with pytest.raises(RefusedError) as refused:
            started.ask("flow_runs/filter", {})
        assert refused.value.status == 401
        up = Up(started.addresses, started.process, started.folder, auth)
        stack = psutil.Process(started.process.pid)
        assert listening(stack) == {"127.0.0.1"}
        run_id = up.ask(f"deployments/{up.deployment()['id']}/create_flow_run", {})["id"]
        until(
            lambda: len(list((up.folder / "store").rglob("receipts/*.json"))) > 0,
            lambda: f"expected a receipt, got {up.run(run_id)['state']}",
        )
        family = stack.children(recursive=True)
    finally:
        said = stop_up(started)
    assert "run demo cancelled" in said
    assert not [each for each in family if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
    with sqlite3.connect(up.folder / "prefect" / "prefect.db") as database:
        states = dict(database.execute("select name, state_name from flow_run").fetchall())
    assert states == {"demo": "Cancelled"}
    assert str(kept) in said
    assert auth.partition(":")[2] not in said
