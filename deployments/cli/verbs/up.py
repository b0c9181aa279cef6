"""`rawseq up`: the local stack, for trying and for one machine. Ctrl-C stops all of it."""

import json
import os
import signal
from pathlib import Path

import click

from deployments.cli.console import Terminal
from deployments.local.folder import StackHome


@click.command(short_help="Start the whole local stack; Ctrl-C stops it.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path("rawseq-up"),
    show_default=True,
    help="Keeps the stack's state: database, store of the demo, logs.",
)
@click.option(
    "--auth",
    is_flag=True,
    help="API and UI ask for user and password: PREFECT_SERVER_API_AUTH_STRING (user:password), else made up "
    "and kept in the folder.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout when it is up.")
def up(folder: Path, auth: bool, as_json: bool) -> int:
    """Start Prefect with its UI, a worker, the deployments and the embedded server, on loopback only."""
    from deployments.local.stack import local_stack

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts `up &` with it ignored
    console, home = Terminal(stderr=True), StackHome(folder)

    def tell(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True, markup=False)

    with home.alone() as ours:
        if not ours:
            record = home.record
            tell(f"already running as process {record.get('pid')}: Ctrl-C there stops it")
            show(record.get("addresses", {}), as_json)
            return 0
        for name in home.end_leftovers():
            tell(f"ended the {name} that a killed `rawseq up` left behind")
        password = home.auth_string(os.environ, auth)
        try:
            with local_stack(home, password, tell) as stack:
                show(stack.addresses, as_json)
                if password is not None:
                    tell(f"login     user:password of {_origin(home)}")
                tell("Ctrl-C stops all of it")
                stack.watch()
        finally:
            home.note(processes={}, addresses={}, pid=None)
            tell("stopped")
    return 0


def _origin(home: StackHome) -> str:
    given = "PREFECT_SERVER_API_AUTH_STRING" in os.environ and not home.auth_file.exists()
    return "PREFECT_SERVER_API_AUTH_STRING" if given else str(home.auth_file)


def show(addresses: dict[str, str], as_json: bool) -> None:
    """Print where what is."""
    if as_json:
        click.echo(json.dumps(addresses))
        return
    console = Terminal()
    for name, what in (
        ("ui", "Prefect's UI"),
        ("form", "start a run here: the form holds a demo job"),
        ("server", "embedded stand-in for an SGLang server"),
        ("store", "rawseq status, show and verify read it"),
        ("folder", "state and logs; delete it to begin anew"),
    ):
        line = f"{name:9} {addresses.get(name, '')}  ({what})"
        console.print(line, highlight=False, soft_wrap=True, markup=False)
