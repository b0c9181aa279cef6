"""The embedded S3 server: its own data and keys, loopback only, safe to kill, never two over one folder."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from deployments.local.seaweed import Seaweed, start_seaweed
from tasks.errors import SurroundingsError
from tasks.job.spec import StoreSpec
from tasks.store.contract import ObjectStore
from tasks.store.opening import open_store


def store_on(server: Seaweed) -> ObjectStore:
    """Open a store on a server."""
    spec = StoreSpec(uri=f"s3://{server.bucket}/x", endpoint_url=server.endpoint_url, region="us-east-1")
    return open_store(spec, "", server.credentials)


def test_it_listens_on_loopback_only(seaweed: Seaweed) -> None:
    """Master, filer and volume ports know no passwords: none may be reachable from elsewhere."""
    listening = [
        connection.laddr.ip
        for connection in psutil.Process(seaweed.process.pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert set(listening) == {"127.0.0.1"}


def test_keys_show_nowhere(seaweed: Seaweed) -> None:
    """The secret is not in repr, not on the command line, and its file is for its owner only."""
    secret = seaweed.credentials["aws_secret_access_key"]
    assert secret not in repr(seaweed)
    assert secret not in " ".join(psutil.Process(seaweed.process.pid).cmdline())
    assert (seaweed.folder / "credentials.json").stat().st_mode & 0o077 == 0


@pytest.mark.process
def test_a_killed_run_is_followed_by_the_next(tmp_path: Path) -> None:
    """A killed run leaves its server behind: the next start ends that one and goes on with its objects."""
    child = f"""
        import os, signal
        from pathlib import Path
        from deployments.local.seaweed import start_seaweed
        from tests.tasks.store.test_seaweed import store_on
        server = start_seaweed(Path({str(tmp_path)!r}))
        store_on(server).put("kept.json", b"1")
        print(server.process.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(child)],
        env=os.environ | {"PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = int(done.stdout)
    assert psutil.pid_exists(left)
    with start_seaweed(tmp_path) as server:
        assert not psutil.pid_exists(left) or psutil.Process(left).status() == psutil.STATUS_ZOMBIE
        store = store_on(server)
        assert store.get("kept.json") == b"1"
        store.close()


@pytest.mark.process
def test_acknowledged_objects_survive_a_kill(tmp_path: Path) -> None:
    """What a put acknowledged is there after SIGKILL and a restart at the same address."""
    server = start_seaweed(tmp_path)
    store = store_on(server)
    for number in range(30):
        store.put(f"n/{number:03d}.bin", bytes([number]) * 1000)
    server.kill()
    server = start_seaweed(tmp_path, port=server.port)
    assert [store.get(f"n/{number:03d}.bin")[:1] for number in range(30)] == [bytes([n]) for n in range(30)]
    store.close()
    server.stop()


@pytest.mark.process
def test_a_start_that_fails_shows_the_log(tmp_path: Path) -> None:
    """When the server cannot start the error ends with its own words."""
    with pytest.raises(SurroundingsError, match=r"SeaweedFS on .* expected ready within 0 s"):
        start_seaweed(tmp_path, ready_seconds=0.0)
