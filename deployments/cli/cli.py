"""The `rawseq` command.

Exit status: 0 fine, 1 failed, 2 bad arguments or job, 3 not complete yet, 4 unknown, 5 environment,
130 or 143 on a signal (decisions 18).
"""

import json
import signal
import sys
from types import FrameType
from typing import NoReturn

import click

from deployments.cli.console import escaped
from deployments.cli.verbs.check import check
from deployments.cli.verbs.demo import demo
from deployments.cli.verbs.export import export
from deployments.cli.verbs.extend import extend
from deployments.cli.verbs.probe import probe
from deployments.cli.verbs.publish import publish
from deployments.cli.verbs.render import render
from deployments.cli.verbs.retry import retry
from deployments.cli.verbs.run import run
from deployments.cli.verbs.show import show
from deployments.cli.verbs.status import status
from deployments.cli.verbs.up import up
from deployments.cli.verbs.verify import verify
from tasks.errors import RawseqError


class _AsListed(click.Group):
    """Shows its commands in the order of a first use, not of the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which they were added."""
        return list(self.commands)


@click.group(cls=_AsListed, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="rawseq")
def cli() -> None:
    """Prompts in, SGLang generates, checked raw token ids out.

    STORE is a job's own prefix (a folder or s3://bucket/prefix), a parent that holds exactly one job, or
    `demo` for the dataset that `rawseq demo` made in this folder.

    Exit status: 0 fine, 1 failed or not accepted, 2 bad arguments or job, 3 not complete yet, 4 unknown, 5
    server, store or credentials, 130 or 143 on a signal.
    """


for command in (demo, render, probe, run, status, show, retry, extend, verify, check, publish, export, up):
    cli.add_command(command)


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    del frame
    raise SystemExit(128 + number)


def run_command() -> NoReturn:
    """Run the command line; every deliberate error becomes one message and its exit status."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _terminated)
    try:
        sys.exit(cli.main(prog_name="rawseq", standalone_mode=False))
    except click.ClickException as error:
        _tell_json("UsageError", error.format_message())
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted; what is committed stays, the same command resumes", err=True)
        sys.exit(130)
    except RawseqError as error:
        _tell_json(type(error).__name__, str(error))
        click.echo(escaped(f"{type(error).__name__}: {error}"), err=True)
        sys.exit(error.exit_status)


def _tell_json(kind: str, message: str) -> None:
    if "--json" in sys.argv:
        click.echo(json.dumps({"error": {"type": kind, "message": message}}))
