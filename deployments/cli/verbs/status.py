"""`rawseq status STORE`: what the ledger lists, while a run goes or after."""

import json
from typing import Any

import click

from deployments.cli.arguments import Access, opened_store, store_options
from deployments.cli.console import output, verdict_table
from deployments.cli.job_record import job_record
from tasks.dataset.damage import ListedFiles
from tasks.ledger.ledger import Ledger
from tasks.ledger.receipt import Receipt
from tasks.store.commands import retry_command
from tasks.store.contract import ObjectStore


@click.command(short_help="Batches, rows, tokens and rejects of a dataset.")
@click.argument("store")
@store_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def status(store: str, access: Access, as_json: bool) -> int:
    """Batches by state, rows, tokens and rejects of STORE. Exit 0 complete, 3 not yet."""
    with opened_store(store, access) as (opened, _):
        answer = describe(opened)
    if as_json:
        click.echo(json.dumps(answer))
    else:
        _print(answer)
    return 0 if answer["state"] == "complete" else 3


def describe(store: ObjectStore) -> dict[str, Any]:
    """Return the JSON object of `status`."""
    ledger = Ledger(store, job_record(store)["job_id"])
    committed, damaged = ledger.committed(), []
    files = ListedFiles(store)  # after the receipts: a live job adds to both

    def looked_at(receipt: Receipt) -> Receipt:
        if files.lacks(receipt):
            damaged.append(receipt.batch)
        return receipt

    totals = ledger.fold(map(looked_at, ledger.iter_receipts(committed)))
    plan = ledger.plan_of(committed)
    pending = len(plan.batches) - totals.batches
    return {
        "job_id": ledger.job_id,
        "store": store.uri,
        "state": "incomplete" if pending or damaged or not plan.batches else "complete",
        "batches": {"total": len(plan.batches), "committed": totals.batches, "pending": pending},
        "records_planned": plan.records,
        "rows": dict(totals.rows),
        "tokens": dict(totals.tokens),
        "damaged": {"batches": damaged, "repair": retry_command(store.typed, damaged) if damaged else None},
    }


def _print(answer: dict[str, Any]) -> None:
    console = output()
    batches, rows, tokens = answer["batches"], answer["rows"], answer["tokens"]
    for line in (
        f"{answer['job_id']}: {answer['state']}",
        f"batches {batches['committed']} of {batches['total']} committed, {batches['pending']} pending",
        f"rows    {rows['total']} = {rows['accepted']} accepted + {rows['rejected']} rejected",
        f"tokens  {tokens['prompt']} prompt + {tokens['output']} output",
    ):
        console.print(line, highlight=False, soft_wrap=True)
    if answer["damaged"]["batches"]:
        line = f"{len(answer['damaged']['batches'])} batches have lost files: {answer['damaged']['repair']}"
        console.print(line, style="bold red", highlight=False, soft_wrap=True, markup=False)
    if rows["by_verdict"]:
        console.print(verdict_table(rows["by_verdict"]))
