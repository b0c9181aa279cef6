"""`rawseq render JOB.yaml`: the prompts exactly as they would be sent, and what was refused and why."""

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from tasks.jobfile import load_job
from tasks.records import Completion, Request
from tasks.tokens.vocabulary import Vocabulary

TAIL_IDS = 8
"""Enough of a prompt's end to see the assistant's header and the opener."""


@click.command()
@click.argument("job", type=click.Path(path_type=Path))
@click.option("--n", "count", default=3, show_default=True, type=click.IntRange(1), help="How many records.")
@click.option(
    "--set", "settings", multiple=True, metavar="PATH=VALUE", help="Override a field of the job file."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a row on stdout, then a summary.")
def render(job: Path, count: int, settings: tuple[str, ...], as_json: bool) -> int:
    """Show the first prompts of JOB as ids, control tokens visible. No server is needed.

    Exit 1 when a row would be refused.
    """
    from tasks.preview import preview
    from tasks.tokens.vocabulary import load_vocabulary

    spec = load_job(job, settings)
    vocabulary = load_vocabulary(spec.model)
    rows = refused = 0
    for row in preview(spec, vocabulary, count).rows:
        rows += 1
        refused += isinstance(row, Completion)
        described = _described(row, vocabulary)
        if as_json:
            click.echo(json.dumps(described))
        else:
            _print(described, vocabulary)
    summary = {"rows": rows, "refused": refused}
    if as_json:
        click.echo(json.dumps({"summary": summary}))
    else:
        Console().print(f"{rows} prompts, {refused} refused", style="bold", highlight=False)
    return 1 if refused else 0


def _described(row: Request | Completion, vocabulary: Vocabulary) -> dict[str, Any]:
    if isinstance(row, Completion):
        return {"row_id": row.row_id, "code": row.code, "offset": row.code_offset, "detail": row.detail}
    ids = row.input_ids.tolist()
    return {
        "row_id": row.row_id,
        "input_ids": ids,
        "text": vocabulary.decode(ids),
        "tail": [vocabulary.name_of(token) for token in ids[-TAIL_IDS:]],
        "max_new_tokens": row.max_new_tokens,
        "seed": row.seed,
    }


def _print(row: dict[str, Any], vocabulary: Vocabulary) -> None:
    console = Console()
    if "code" in row:
        place = f" at {row['offset']}" if row["offset"] >= 0 else ""
        head = f"{row['row_id']}  refused: {row['code']}{place}"
        console.print(head, style="bold red", highlight=False, soft_wrap=True)
        console.print(f"  {row['detail']}\n", style="red", highlight=False, soft_wrap=True)
        return
    head = f"{row['row_id']}  {len(row['input_ids'])} ids, at most {row['max_new_tokens']} new"
    console.print(head, style="bold", highlight=False, soft_wrap=True)
    console.print(f"  text  {row['text']}", highlight=False, soft_wrap=True, markup=False)
    console.print(f"  ids   {row['input_ids']}", highlight=False, soft_wrap=True, markup=False)
    console.print(f"  tail  {' '.join(row['tail'])}\n", highlight=False, soft_wrap=True, markup=False)
