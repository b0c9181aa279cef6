"""`rawseq publish STORE`: index, card and page of what is committed so far."""

import json
from pathlib import Path

import click

from deployments.cli.arguments import Access, opened_store, store_options
from deployments.cli.console import output
from tasks.errors import JobError
from tasks.store.contract import ObjectStore


@click.command(short_help="Index, card and report of what is committed so far.")
@click.argument("store")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Folder that gets a copy of all three."
)
@store_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def publish(store: str, access: Access, out: Path | None, as_json: bool) -> int:
    """Write dataset.json, README.md and report.html of STORE from the receipts so far.

    Every run ends with this; a job that is not complete, or was interrupted, can be published too.
    """
    from tasks.report.publish import publish_store

    with opened_store(store, access) as (opened, _):
        summary, published = publish_store(opened)
        if out is not None:
            _copy(opened, out)
    if as_json:
        keys = ("job_id", "store", "batches", "rows", "tokens")
        told = {key: value for key, value in summary.as_json().items() if key in keys}
        click.echo(json.dumps(told | {"complete": not summary.problem} | published.as_json()))
        return 0
    rows, batches = summary.rows, f"{summary.batches_committed} of {summary.batches_total}"
    lines = [
        f"batches {batches} committed",
        f"rows    {rows['accepted']} accepted, {rows['rejected']} rejected",
    ]
    copied = [f"copy    {out / 'report.html'}"] if out is not None else []
    for line in [*lines, *published.lines(), *copied]:
        output().print(line, highlight=False, soft_wrap=True, markup=False)
    return 0


def _copy(store: ObjectStore, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("dataset.json", "README.md", "report.html"):
            (folder / name).write_bytes(store.get(name))
    except OSError as error:
        raise JobError(
            f"--out: expected a folder that can be written, got {folder}: {error.strerror}"
        ) from None
