"""`rawseq render JOB.yaml`: the prompts exactly as they would be sent, and what was refused and why."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from deployments.cli.arguments import keys_of
from deployments.cli.console import output
from tasks.job.jobfile import load_job
from tasks.job.spec import JobSpec
from tasks.rows.records import Completion


@click.command(short_help="Show prompts exactly as they would be sent.")
@click.argument("job", type=click.Path(path_type=Path))
@click.option(
    "--n",
    "count",
    default=3,
    show_default=True,
    metavar="K",
    type=click.IntRange(1),
    help="How many records.",
)
@click.option(
    "--set", "settings", multiple=True, metavar="PATH=VALUE", help="Override a field of the job file."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a row on stdout, then a summary.")
def render(job: Path, count: int, settings: tuple[str, ...], as_json: bool) -> int:
    """Show the first prompts of JOB as ids, control tokens visible. No server is needed.

    They are planned as a first run would: in its order, with its refusals. Exit 1 when a row would be
    refused, 2 when the run would stop.
    """
    from tasks.run.preview import preview
    from tasks.turns.inspect_row import describe_refusal, describe_request

    spec = load_job(job, settings)
    shown = preview(spec, count, _keys(spec))
    rows = refused = 0
    for row in shown.rows:
        rows += 1
        refused += isinstance(row, Completion)
        described = (
            describe_refusal(row)
            if isinstance(row, Completion)
            else describe_request(shown.vocabulary, shown.grammar, row)
        )
        if as_json:
            click.echo(json.dumps(described))
        else:
            _print(described)
    summary = {"rows": rows, "refused": refused}
    if as_json:
        click.echo(json.dumps({"summary": summary}))
    else:
        output().print(f"{rows} prompts, {refused} refused", style="bold", highlight=False)
    return 1 if refused else 0


def _keys(spec: JobSpec) -> Mapping[str, str] | None:
    """Return the keys for prompts in S3, of the block that the job names; else Prefect is not asked."""
    addresses = (*(part.uri for part in spec.prompts.parts), *spec.prompts.exclude)
    return keys_of(spec.store) if any(uri.startswith("s3://") for uri in addresses) else None


def _print(row: dict[str, Any]) -> None:
    console = output()
    if "refused" in row:
        refused = row["refused"]
        place = f" at {refused['offset']}" if refused["offset"] >= 0 else ""
        head = f"{row['row_id']}  refused: {refused['code']}{place}"
        console.print(head, style="bold red", highlight=False, soft_wrap=True, markup=False)
        console.print(f"  {refused['detail']}\n", style="red", highlight=False, soft_wrap=True, markup=False)
        return
    head = f"{row['row_id']}  {len(row['input_ids'])} ids, at most {row['max_new_tokens']} new"
    console.print(head, style="bold", highlight=False, soft_wrap=True, markup=False)
    console.print(f"  text  {row['text']}", highlight=False, soft_wrap=True, markup=False)
    console.print(f"  ids   {row['input_ids']}", highlight=False, soft_wrap=True, markup=False)
    tail = f"{' '.join(row['tail']['names'])} ({row['tail']['mode']})"
    console.print(f"  tail  {tail}\n", highlight=False, soft_wrap=True, markup=False)
