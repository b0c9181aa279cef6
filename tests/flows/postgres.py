"""A PostgreSQL of the tests' own, from the system's package: own data folder, own port. Not a test module."""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

START_SECONDS = 60.0


def programs() -> Path:
    """Return the folder of initdb and postgres: where Debian puts them, or on PATH."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    found = shutil.which("initdb")
    assert debian or found, "expected PostgreSQL's programs (apt-get install postgresql)"
    return debian[-1] if debian else Path(str(found)).parent


def _as_owner() -> dict[str, Any]:
    """PostgreSQL refuses to run as root: it then runs as the user that its package has made."""
    if os.getuid():
        return {}
    owner = pwd.getpwnam("postgres")
    return {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}


@contextmanager
def running_postgres(port: int) -> Iterator[str]:
    """Run a server on loopback; yield the URL of an empty database for Prefect."""
    owner, folder = _as_owner(), Path(tempfile.mkdtemp(prefix="rawseq-postgres-"))
    if owner:
        os.chown(folder, owner["user"], owner["group"])
    data, bin_ = str(folder / "data"), programs()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "cwd": folder}
    made = subprocess.run(
        [bin_ / "initdb", "-D", data, "-U", "prefect", "-A", "trust", "--no-sync", "-E", "UTF8"],
        check=False,
        **quiet,
        **owner,
    )
    assert made.returncode == 0, made.stderr.decode()
    options = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off"}
    settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
    command = [bin_ / "postgres", "-D", data, "-p", str(port), *settings]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, **owner)
    try:
        _wait_ready(bin_, port, process, folder / "log")
        yield f"postgresql+asyncpg://prefect@127.0.0.1:{port}/postgres"
    finally:
        process.terminate()  # SIGTERM lets clients finish: they are gone by now
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder)


def _wait_ready(bin_: Path, port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        asked = subprocess.run([bin_ / "pg_isready", "-h", "127.0.0.1", "-p", str(port), "-q"], check=False)
        if asked.returncode == 0:
            return
        time.sleep(0.1)  # polling a server that starts, not synchronising with it
    raise AssertionError(f"PostgreSQL did not get ready:\n{log.read_text()[-3000:]}")
