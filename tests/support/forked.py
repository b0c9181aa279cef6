"""Runs `rawseq` commands, and code, in children of one process that has imported everything: at once.

Not a test module: `Template` starts it. One JSON object a line on stdin; each is answered by one on stdout.
A command may be given a `Fault`: its n-th write or sync of certain files kills it, or fails from then on.
"""

import errno
import gc
import importlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

POLL_SECONDS = 0.02
CODE_SECONDS = 300.0


class Fault(NamedTuple):
    """What the disk does to a command.

    Args:
        kind: `kill`: half of the write is done, then the process is killed; or an errno's name: the call
            fails with it, and all later ones.
        path: text in the path of the files that are meant.
        number: which write or sync of such files is the first.
    """

    kind: str
    path: str
    number: int = 1


class Template:
    """The process that forks. Its children are ordinary processes that may be killed.

    Args:
        env: environment of every command.
        log: takes what the process itself has to say.
    """

    def __init__(self, env: dict[str, str], log: Path) -> None:
        with log.open("ab") as sink:
            self._process = subprocess.Popen(
                [sys.executable, __file__],
                env=env | {"PYTHONPATH": str(Path(__file__).parents[2])},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                text=True,
            )
        self._lock = threading.Lock()
        self._statuses: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def _ask(self, **question: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())

    def start(
        self,
        log: Path,
        *argv: str,
        out: Path | None = None,
        env: Mapping[str, str] | None = None,
        fault: Fault | None = None,
        code: str = "",
    ) -> int:
        """Start `rawseq ARGV`, or code, in the log's folder; return its process id.

        Args:
            log: its stderr is appended to it.
            argv: the command's arguments.
            out: its stdout is appended to it; None: to the log.
            env: variables to add.
            fault: what the disk does to it.
            code: Python code that is run instead of the command, `argv` behind its `sys.argv[0]`.
        """
        settings = {"log": str(log), "out": str(out or log), "env": dict(env or {}), "fault": fault}
        settings["code"] = code
        return int(self._ask(argv=argv, **settings))

    def run_code(
        self,
        code: str,
        *argv: str,
        folder: Path,
        env: Mapping[str, str] | None = None,
        seconds: float = 300.0,
    ) -> str:
        """Run Python code in a folder; return what it printed, after seeing that it ended well."""
        number = len(self._statuses)
        log, out = folder / f"code-{number}.log", folder / f"code-{number}.out"
        pid = self.start(log, *argv, out=out, env=env, code=code)
        assert self.wait(pid, CODE_SECONDS) == 0, log.read_text()[-4000:]
        return out.read_text()

    def status(self, pid: int) -> int | None:
        """Return the exit status of a command, negative for a signal; None while it goes on."""
        if pid not in self._statuses:
            status: int | None = self._ask(pid=pid)
            if status is None:
                return None
            self._statuses[pid] = status
        return self._statuses[pid]

    def running(self, pid: int) -> bool:
        """Whether a command goes on."""
        return self.status(pid) is None

    def kill(self, pid: int) -> None:
        """SIGKILL a command that has not been waited for, and wait for it."""
        os.kill(pid, signal.SIGKILL)
        self.wait(pid, 60.0)

    def wait(self, pid: int, seconds: float) -> int:
        """Wait for a command's end; return its exit status.

        Raises:
            TimeoutError: it goes on for longer than that.
        """
        deadline = time.monotonic() + seconds
        while (status := self.status(pid)) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"process {pid} goes on after {seconds:.0f} s")
            time.sleep(POLL_SECONDS)
        return status


def _start(
    argv: list[str], log: str, out: str, env: dict[str, str], fault: list[Any] | None, code: str
) -> int:
    pid = os.fork()
    if pid:
        return pid
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in ((1, out), (2, log)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.chdir(Path(log).parent)
    os.environ.update(env)
    tempfile.tempdir = None  # which TMPDIR may have changed
    sys.argv = ["rawseq", *argv]
    if fault is not None:
        _arm(Fault(*fault))
    from deployments.cli.main import main

    status: Any = 1
    try:
        exec(compile(code, "<code>", "exec"), {"__name__": "__main__"}) if code else main()
        status = 0
    except SystemExit as end:
        status = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        logging.shutdown()  # as an interpreter's end does: what Prefect has still to send of the log goes out
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 0)


def _arm(fault: Fault) -> None:
    left = fault.number

    def faulty(call: Callable[..., Any]) -> Callable[..., Any]:
        def calling(descriptor: int, *arguments: Any) -> Any:
            nonlocal left
            if fault.path in os.readlink(f"/proc/self/fd/{descriptor}"):
                left -= 1
                if left <= 0 and fault.kind != "kill":
                    number = getattr(errno, fault.kind)
                    raise OSError(number, os.strerror(number))
                if left == 0:
                    if arguments:
                        call(descriptor, bytes(arguments[0])[: len(arguments[0]) // 2], *arguments[1:])
                    os.kill(os.getpid(), signal.SIGKILL)
            return call(descriptor, *arguments)

        return calling

    for name in ("pwrite", "fsync", "fdatasync"):
        setattr(os, name, faulty(getattr(os, name)))


def _status(pid: int) -> int | None:
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


IMPORTED = (
    "boto3",
    "fastapi",
    "matplotlib.figure",
    "pandas",  # pyarrow does, where it is installed
    "prefect.server.api.server",
    "pyarrow.parquet",
    "transformers.models.auto.tokenization_auto",
    "uvloop",
    "deployments.cli.cli",
    "flows.extend",
    "flows.generate",
    "flows.retry",
    "tasks.store.s3",
    "tasks.tokenizer.vocabulary",
)


def _serve() -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is imported is not searched, and so not copied, by every child's collections
    for line in sys.stdin:
        question = json.loads(line)
        answer = _start(**question) if "argv" in question else _status(question["pid"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _serve()
