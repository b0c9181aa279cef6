"""The `rawseq` program. Nothing heavy is imported before its signals are answered."""

import io
import os
import signal
import sys
from collections.abc import MutableMapping
from types import FrameType
from typing import Final, NoReturn

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


def main() -> NoReturn:
    """Run the command line; from the first moment on, Ctrl-C and SIGTERM end it without a traceback."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end_at_once)
    for stream in (sys.stdout, sys.stderr):  # what a terminal's encoding lacks is shown as an escape
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    exempt_loopback(os.environ)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it warns that PyTorch is missing: we need none
    from deployments.cli.cli import run_command

    run_command()


def exempt_loopback(environment: MutableMapping[str, str]) -> None:
    """Let nothing of this machine go through a proxy: not its Prefect server, not its object store."""
    if not any(name.lower() in ("http_proxy", "https_proxy", "all_proxy") for name in environment):
        return
    said = environment.get("no_proxy") or environment.get("NO_PROXY") or ""  # where both are, this one counts
    known = [host.strip() for host in said.split(",") if host.strip()]
    if "*" not in known:  # which means every host only when it stands alone
        known += [host for host in LOOPBACK if host not in known]
    environment["NO_PROXY"] = environment["no_proxy"] = ",".join(known)


def _end_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """While modules load nothing is open yet, and some of them swallow exceptions."""
    del frame
    os.write(2, b"interrupted before anything began\n")
    os._exit(128 + number)


if __name__ == "__main__":
    main()
