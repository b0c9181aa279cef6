"""`rawseq verify STORE`: re-read everything and say whether it can be trained on."""

import json
from typing import Any

import click
from rich.console import Console

from deployments.console import checks_table
from deployments.job_record import grammar_of
from deployments.store_argument import opened_store
from tasks.storage.audit import audit
from tasks.storage.orphans import collect_orphans as remove_orphans
from tasks.tokens.check import check_rows

SHOWN_PROBLEMS = 20


@click.command()
@click.argument("store")
@click.option("--collect-orphans", is_flag=True, help="Then delete files that no receipt lists.")
@click.option(
    "--older-than-seconds",
    default=86_400.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Least age of an orphan; a younger one may be about to be committed.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def verify(store: str, collect_orphans: bool, older_than_seconds: float, as_json: bool) -> int:
    """Check every receipt, shard, sha256, grammar, count and row id of STORE."""
    with opened_store(store) as opened:
        grammar = grammar_of(opened)
        result = audit(opened, lambda inputs, outputs, rows: check_rows(grammar, inputs, outputs, rows))
        answer = result.as_json()
        if collect_orphans:
            deleted, young = remove_orphans(opened, answer["job_id"], older_than_seconds)
            answer["collected"] = {"deleted": deleted, "too_young": young}
    if as_json:
        click.echo(json.dumps(answer))
    else:
        _print(answer)
    return 0 if answer["trainable"] else 1


def _print(answer: dict[str, Any]) -> None:
    console = Console()
    rows = [
        {
            "name": check["name"],
            "passed": check["passed"],
            "expected": f"{check['checked']} checked",
            "got": f"{check['failed']} problems",
        }
        for check in answer["checks"]
    ]
    console.print(checks_table(answer["store"], rows))
    problems = [(check["name"], problem) for check in answer["checks"] for problem in check["problems"]]
    for name, problem in problems[:SHOWN_PROBLEMS]:
        place = f"{problem['object']}" + (f" row {problem['row']}" if problem["row"] is not None else "")
        text = f"{name}: {place}: expected {problem['expected']}, got {problem['got']}"
        console.print(text, style="red", highlight=False, soft_wrap=True, markup=False)
    if len(problems) > SHOWN_PROBLEMS:
        console.print(f"… and {len(problems) - SHOWN_PROBLEMS} more (see --json)", style="red")
    if "collected" in answer:
        gone, young = answer["collected"]["deleted"], answer["collected"]["too_young"]
        console.print(f"{len(gone)} orphans deleted, {len(young)} too young", highlight=False)
    elif answer["orphans"]:
        console.print(
            f"{len(answer['orphans'])} orphans (--collect-orphans removes old ones)", highlight=False
        )
    console.print(
        answer["reason"],
        style="bold green" if answer["trainable"] else "bold red",
        soft_wrap=True,
        markup=False,
    )
