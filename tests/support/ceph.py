"""Ceph RGW 16.2 from Debian, unprivileged, in a folder: the old dialect of S3 as a lane of its own.

    python -m tests.support.ceph [--packages FOLDER] [pytest arguments]

Fetches Debian 12's packages with apt into FOLDER (about 70 MB, unpacked 260 MB, nothing is installed), starts
a monitor, one OSD on a sparse file and a gateway over http and https on loopback, and runs the storage tests
in the lanes `ceph` and `ceph-https`. It starts in about 20 s.

Traps, as met: with `auth_*_required = none` the messenger must be set to `crc`, or radosgw never listens; RGW
needs no manager; a pool of one copy must be allowed.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import boto3

from deployments.local.seaweed import free_ports
from tests.support.certificates import write_certificate

PACKAGES = ("radosgw", "ceph-mon", "ceph-osd")
KEYS = {"aws_access_key_id": "rawseq-test", "aws_secret_access_key": "rawseq-test-secret"}
BUCKET = "rawseq"
READY_SECONDS = 120.0

CONF = """
[global]
fsid = {fsid}
mon host = v2:127.0.0.1:{mon}/0
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
ms_mon_client_mode = crc
ms_cluster_mode = crc
ms_service_mode = crc
ms_client_mode = crc
public addr = 127.0.0.1
cluster addr = 127.0.0.1
run_dir = {folder}/run
admin_socket = {folder}/run/$name.$pid.asok
log_file = {folder}/$name.log
pid_file =
mon_data = {folder}/mon
osd_data = {folder}/osd
plugin_dir = {root}/usr/lib/x86_64-linux-gnu/ceph
erasure_code_dir = {root}/usr/lib/x86_64-linux-gnu/ceph/erasure-code
osd_class_dir = {root}/usr/lib/x86_64-linux-gnu/rados-classes
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 1
osd_pool_default_pgp_num = 1
osd_pool_default_pg_autoscale_mode = off
mon_allow_pool_size_one = true
osd_crush_chooseleaf_type = 0
bluestore_block_size = 4294967296
mon_max_pg_per_osd = 2000
[client.rgw]
rgw_frontends = beast endpoint=127.0.0.1:{http} ssl_endpoint=127.0.0.1:{https} {tls}
rgw_data = {folder}
"""


def fetch(packages: Path) -> Path:
    """Return the folder with unpacked packages, fetched when it is not there."""
    root = packages / "root"
    if not root.is_dir():
        debs = packages / "debs"
        (debs / "partial").mkdir(parents=True, exist_ok=True)
        options = ["-y", "--no-install-recommends", "--download-only", "-o", f"Dir::Cache::archives={debs}"]
        subprocess.run(["apt-get", "install", *options, *PACKAGES], check=True, stdout=sys.stderr)
        for deb in sorted(debs.glob("*.deb")):
            subprocess.run(["dpkg", "-x", str(deb), str(root)], check=True)
    return root


@contextlib.contextmanager
def running(root: Path, folder: Path) -> Iterator[dict[str, str]]:
    """Start a cluster of one in `folder`; yield the variables by which the tests find it; end it."""
    for name in ("mon", "osd", "run"):
        (folder / name).mkdir(parents=True)
    cert, key = write_certificate(folder)
    mon, http, https = free_ports(3)
    fsid = str(uuid.uuid4())
    tls = f"ssl_certificate={cert} ssl_private_key={key}"
    conf = CONF.format(fsid=fsid, mon=mon, folder=folder, root=root, http=http, https=https, tls=tls)
    (folder / "ceph.conf").write_text(conf)
    libraries = [root / f"usr/lib/{part}" for part in ("x86_64-linux-gnu", "x86_64-linux-gnu/ceph", "ceph")]
    env = {
        "CEPH_CONF": str(folder / "ceph.conf"),
        "LD_LIBRARY_PATH": ":".join(map(str, [*libraries, root / "lib/x86_64-linux-gnu"])),
        "PATH": f"{root}/usr/bin:{root}/usr/sbin:{os.environ['PATH']}",
        "PYTHONPATH": str(root / "usr/lib/python3/dist-packages"),
    }
    started: list[subprocess.Popen[bytes]] = []

    def run(*command: str) -> str:
        done = subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=60)
        return done.stdout

    def start(name: str, *command: str) -> None:
        with (folder / f"{name}.out").open("wb") as log:
            started.append(subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True))

    try:
        monmap = str(folder / "monmap")
        run("monmaptool", "--create", "--fsid", fsid, "--addv", "a", f"v2:127.0.0.1:{mon}", monmap)
        run("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap)
        start("mon", "ceph-mon", "-i", "a", "-f")
        osd = str(uuid.uuid4())
        number = run("/usr/bin/python3", f"{root}/usr/bin/ceph", "osd", "new", osd).strip()
        run("ceph-osd", "-i", number, "--mkfs", "--osd-uuid", osd)
        start("osd", "ceph-osd", "-i", number, "-f")
        start("rgw", "radosgw", "-n", "client.rgw", "-f")
        user = ["--uid=test", "--display-name=test", "--access-key", KEYS["aws_access_key_id"]]
        run(
            "radosgw-admin",
            "-n",
            "client.rgw",
            "user",
            "create",
            *user,
            "--secret-key",
            KEYS["aws_secret_access_key"],
        )
        url = f"http://127.0.0.1:{http}"
        wait(url)
        client = boto3.client("s3", endpoint_url=url, region_name="us-east-1", **KEYS)
        client.create_bucket(Bucket=BUCKET)
        client.close()
        yield {
            "RAWSEQ_CEPH_URL": url,
            "RAWSEQ_CEPH_HTTPS_URL": f"https://127.0.0.1:{https}",
            "RAWSEQ_CEPH_CA": str(cert),
        }
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGKILL)
            process.wait()


def wait(url: str) -> None:
    """Return when the gateway answers."""
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)  # polling a server that starts


def main() -> int:
    """Fetch, start, test, end; return pytest's exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--packages", type=Path, default=Path(tempfile.gettempdir()) / "rawseq-ceph")
    arguments, rest = parser.parse_known_args()
    root = fetch(arguments.packages.absolute())
    with tempfile.TemporaryDirectory(prefix="rawseq-rgw-") as folder, running(root, Path(folder)) as env:
        tests = rest or ["tests/tasks", "-k", "ceph"]
        command = [sys.executable, "-m", "pytest", *tests]
        return subprocess.run(command, env=os.environ | env, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
