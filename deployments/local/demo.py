"""The demo's folder: S3 data, journals, logs and job file, all below one place that can be deleted."""

import fcntl
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import psutil

from deployments.local.seaweed import start_seaweed
from tasks.errors import SurroundingsError
from tasks.job.spec import StoreSpec
from tasks.store.disk import lasting_text

BUCKET = "rawseq"

END_SECONDS = 10.0
"""A stand-in without work ends at once; after this it is killed."""


def _new_keys() -> str:
    keys = {
        "aws_access_key_id": f"demo{secrets.token_hex(8)}",
        "aws_secret_access_key": secrets.token_hex(20),
    }
    return orjson.dumps(keys).decode()


class DemoHome:
    """`rawseq-demo/` in a folder.

    Args:
        parent: the folder that holds it.
    """

    def __init__(self, parent: Path) -> None:
        self.folder = parent.absolute() / "rawseq-demo"

    @property
    def exists(self) -> bool:
        """Whether a demo was started here before."""
        return (self.folder / "s3").is_dir()

    @property
    def credentials(self) -> dict[str, str]:
        """The keys of the demo's own S3 server: random, made once, readable by this user only."""
        keys: dict[str, str] = orjson.loads(lasting_text(self.folder / "credentials.json", _new_keys))
        return keys

    @property
    def marker(self) -> str:
        """The model name that this demo's stand-in serves: tells its process from every other one."""
        return f"demo:{self.folder}"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the folder for the length of the body: two demos would end each other's servers.

        Raises:
            SurroundingsError: another command is at work in it, or it is no folder.
        """
        try:
            self.folder.mkdir(exist_ok=True)
            file = (self.folder / "lock").open("w")
        except OSError as error:
            raise SurroundingsError(
                f"{self.folder}: expected a folder of ours, got: {error.strerror}"
            ) from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SurroundingsError(
                    f"{self.folder}: another `rawseq` command is at work in it: wait for it, or end it"
                ) from None
            yield

    @contextmanager
    def store(self) -> Iterator[StoreSpec]:
        """Run the demo's S3 server on loopback for the length of the body."""
        with start_seaweed(self.folder / "s3", bucket=BUCKET, credentials=self.credentials) as server:
            yield StoreSpec(uri=f"s3://{BUCKET}", endpoint_url=server.endpoint_url, region="us-east-1")

    def end_standins(self) -> int:
        """End this demo's stand-ins, those that a killed run left behind too; return how many there were."""
        found = [process for process in psutil.process_iter(["cmdline"]) if self._is_ours(process)]
        for process in found:
            process.terminate()
        _, alive = psutil.wait_procs(found, END_SECONDS)
        for process in alive:
            process.kill()
        psutil.wait_procs(alive, END_SECONDS)
        return len(found)

    def _is_ours(self, process: psutil.Process) -> bool:
        argv = process.info["cmdline"] or []
        return "deployments.standin" in argv and self.marker in argv
