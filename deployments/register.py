"""`python -m deployments.register`: work pool, deployments, automations, onto the server of PREFECT_API_URL.

What there is to register is declared in `deployments/prefect.yaml` and `deployments/automations.py`. Doing it
again brings everything up to date.
"""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import click
import yaml
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

from deployments.automations import register_automations
from tasks.errors import JobError, RawseqError, SurroundingsError

PREFECT_FILE = Path(__file__).resolve().parent / "prefect.yaml"


def declared() -> list[tuple[str, str]]:
    """Return (deployment, work pool) of everything that `prefect.yaml` declares, in its order."""
    content = yaml.safe_load(PREFECT_FILE.read_text())
    return [(each["name"], each["work_pool"]["name"]) for each in content["deployments"]]


def register(client: SyncPrefectClient, pool_type: str = "process", notify: str | None = None) -> list[str]:
    """Register everything; return lines that say what is there now.

    Args:
        client: of the Prefect server, the one of PREFECT_API_URL.
        pool_type: type of a work pool that is missing; one that exists keeps its own.
        notify: notification block to be told of runs and restarts, as `type/name`; None: nobody.

    Raises:
        JobError: there is no such block.
        SurroundingsError: `prefect deploy` failed; ends with what it said.
    """
    block = None if notify is None else _block(client, notify)
    pools = dict.fromkeys(pool for _, pool in declared())
    for pool in pools:
        with suppress(ObjectAlreadyExists):
            client.create_work_pool(WorkPoolCreate(name=pool, type=pool_type))
    _deploy()
    names = register_automations(client, block)
    return [
        *(f"work pool   {pool}" for pool in pools),
        *(f"deployment  {name}" for name, _ in declared()),
        *(f"automation  {name}" for name in names),
    ]


def _block(client: SyncPrefectClient, notify: str) -> UUID:
    kind, slash, name = notify.partition("/")
    if not slash:
        raise JobError(f"--notify {notify}: expected type/name, e.g. slack-webhook/team")
    try:
        return client.read_block_document_by_name(name, kind).id
    except ObjectNotFound:
        raise JobError(f"--notify {notify}: expected an existing block, found none of that name") from None


def _deploy() -> None:
    """Run `prefect deploy --all`, so that the declared file means here what it means there."""
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    done = subprocess.run(
        [*command, "--prefect-file", str(PREFECT_FILE)],
        cwd=PREFECT_FILE.parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SurroundingsError(f"prefect deploy failed:\n{(done.stdout + done.stderr).strip()[-2000:]}")


@click.command()
@click.option(
    "--pool-type",
    default="process",
    show_default=True,
    metavar="TYPE",
    help="Type of the work pool if it is missing: process, docker or kubernetes.",
)
@click.option(
    "--notify", metavar="TYPE/NAME", help="Notification block that is told of runs and restarts of servers."
)
def main(pool_type: str, notify: str | None) -> None:
    """Register work pool, deployments and automations on the server of PREFECT_API_URL."""
    try:
        with get_client(sync_client=True) as client:
            for line in register(client, pool_type, notify):
                click.echo(line)
    except RawseqError as error:
        click.echo(f"{type(error).__name__}: {error}", err=True)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main()
