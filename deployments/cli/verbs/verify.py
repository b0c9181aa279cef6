"""`rawseq verify STORE`: re-read everything and say whether it can be trained on."""

import asyncio
import json
from functools import partial
from typing import Any

import click
from pydantic import ValidationError
from rich.console import Console

from deployments.cli.arguments import Access, opened_store, store_options
from deployments.cli.console import checks_table, output
from tasks.audit.audit import audit_store
from tasks.audit.likelihood import TOLERANCE
from tasks.audit.orphans import collect_orphans as remove_orphans
from tasks.audit.report import Problem
from tasks.audit.rescoring import Rescore, rescored
from tasks.audit.sample import RowSample
from tasks.errors import JobError
from tasks.job.spec import ServersSpec

SHOWN_PROBLEMS = 20

READY_SECONDS = 30.0
"""How long the server of --rescore is waited for."""


@click.command(short_help="Re-read everything: trainable or not, and why.")
@click.argument("store")
@click.option("--collect-orphans", is_flag=True, help="Then delete files that no receipt lists.")
@click.option(
    "--older-than-seconds",
    default=86_400.0,
    show_default=True,
    metavar="SECONDS",
    type=click.FloatRange(0),
    help="Least age of an orphan; a younger one may be about to be committed.",
)
@click.option("--sources/--no-sources", default=True, help="Also compare the prompt files with the plan.")
@click.option("--rescore", metavar="URL", help="Also send a sample of rows to this SGLang server.")
@click.option("--sample", default=64, show_default=True, type=click.IntRange(1, 100_000), help="Its rows.")
@click.option("--seed", default=0, show_default=True, help="Of the choice of rows.")
@click.option(
    "--tolerance",
    default=TOLERANCE,
    show_default=True,
    type=click.FloatRange(0.001, 10),
    help="Nats by which log probabilities may differ.",
)
@click.option("--api-key-env", help="Name of the environment variable that holds the API key.")
@store_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def verify(
    store: str, access: Access, collect_orphans: bool, older_than_seconds: float, as_json: bool, **how: Any
) -> int:
    """Check every receipt, shard, sha256, grammar, count and row id of STORE.

    With --rescore a sample of the rows is prefilled with log probabilities, to see whether the model can have
    made these ids. The last line says whether STORE can be trained on, why not, and how far was looked: how
    many rows were scored of how many, and what is therefore not seen. Exit 0 trainable, 1 not.
    """
    ask = _rescore(how)
    sample = RowSample(ask.rows, ask.seed) if ask else None
    see = sample.see if sample else None
    with opened_store(store, access) as (opened, keys):
        result = audit_store(opened, sources=how["sources"], credentials=keys, see=see)
        if ask and sample:
            result = asyncio.run(rescored(result, opened, sample.rows(), ask))
        answer = result.as_json()
        if collect_orphans:
            deleted, young = remove_orphans(opened, answer["job_id"], older_than_seconds)
            answer["collected"] = {"deleted": deleted, "too_young": young}
    if as_json:
        click.echo(json.dumps(answer))
    else:
        _print(answer)
    return 0 if answer["trainable"] else 1


def _rescore(how: dict[str, Any]) -> Rescore | None:
    """Return what re-scoring is to do, None when it is not asked for.

    Raises:
        JobError: no server address, or one with credentials in it.
    """
    if how["rescore"] is None:
        return None
    try:
        servers = ServersSpec(
            urls=[how["rescore"]], api_key_env=how["api_key_env"], ready_timeout_seconds=READY_SECONDS
        )
    except ValidationError:
        raise JobError("--rescore: expected http://host:port without credentials or query") from None
    return Rescore(servers, how["sample"], how["seed"], how["tolerance"])


def _print(answer: dict[str, Any]) -> None:
    console = output()
    line = partial(_print_line, console)
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
        line(f"{name}: {Problem(**problem)}", "red")
    if len(problems) > SHOWN_PROBLEMS:
        line(f"… and {len(problems) - SHOWN_PROBLEMS} more (see --json)", "red")
    if answer["repair"]:
        line(f"repair    {answer['repair']}", "yellow")
    for notice in answer["notices"]:
        line(f"notice    {notice}", "yellow")
    if "collected" in answer:
        gone, young = answer["collected"]["deleted"], answer["collected"]["too_young"]
        line(f"{len(gone)} orphans deleted, {len(young)} too young")
    elif answer["orphans"]:
        line(f"{len(answer['orphans'])} orphans (--collect-orphans removes old ones)")
    line(answer["reason"], "bold green" if answer["trainable"] else "bold red")


def _print_line(console: Console, text: str, style: str = "") -> None:
    """Print a line as it is: whatever user text is in it is no markup, and it is not folded."""
    console.print(text, style=style, highlight=False, soft_wrap=True, markup=False)
