"""`rawseq show STORE`: sequences as they lie in the shard, segments coloured and named."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from deployments.console import output, print_sequence
from deployments.job_record import job_record, vocabulary_of
from deployments.store_argument import opened_store
from tasks.errors import JobError
from tasks.records import Segment
from tasks.storage.ledger import Ledger
from tasks.storage.shard import ShardRows
from tasks.storage.shard_reader import decode_rejected, decode_shard
from tasks.storage.store import ObjectStore


@click.command(short_help="Sequences as stored, segment by segment.")
@click.argument("store")
@click.option("--row", metavar="ID", help="The row with this id.")
@click.option("--rejected", is_flag=True, help="Rejected rows, with code, offset and detail.")
@click.option(
    "--n", "count", default=3, show_default=True, metavar="K", type=click.IntRange(1), help="How many rows."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a row on stdout, then a summary.")
def show(store: str, row: str | None, rejected: bool, count: int, as_json: bool) -> int:
    """Print rows of STORE: ids beside text, each segment in its colour."""
    with opened_store(store) as opened:
        vocabulary = vocabulary_of(opened)
        shown = 0
        for found in _rows(opened, rejected, row):
            found["text"] = vocabulary.decode(found["input_ids"])
            if as_json:
                click.echo(json.dumps(found))
            else:
                _print(found, vocabulary.decode)
            shown += 1
            if row is not None or shown == count:
                break
    if row is not None and not shown:
        raise JobError(f"--row {row}: no such row in {store}")
    if as_json:
        click.echo(json.dumps({"summary": {"rows": shown}}))
    return 0


def _rows(store: ObjectStore, rejected: bool, row: str | None) -> Iterator[dict[str, Any]]:
    receipts = Ledger(store, job_record(store)["job_id"]).iter_receipts()
    for receipt in receipts:
        if receipt.shard is not None and not rejected:
            yield from _matching(decode_shard(store.get(receipt.shard.key), receipt.shard.key), row)
        if receipt.rejected is not None and (rejected or row is not None):
            yield from _matching(decode_rejected(store.get(receipt.rejected.key), receipt.rejected.key), row)


def _matching(rows: ShardRows, row: str | None) -> Iterator[dict[str, Any]]:
    for index, row_id in enumerate(rows.row_ids):
        if row is None or row_id == row:
            yield _described(rows, index)


def _described(rows: ShardRows, index: int) -> dict[str, Any]:
    found = {
        "row_id": rows.row_ids[index],
        "verdict": rows.verdicts[index],
        "input_ids": rows.sequences.row(index).tolist(),
        "prompt_length": int(rows.prompt_lengths[index]),
        "segments": [{"kind": s.kind, "start": s.start, "stop": s.stop} for s in rows.segments[index]],
        "finish_reason": rows.finish_reasons[index],
        "matched_stop": rows.matched_stops[index],
        "extends_previous": bool(rows.extends[index]),
        "metadata": json.loads(rows.metadata[index]),
    }
    if rows.offsets is not None:
        found |= {"verdict_offset": int(rows.offsets[index]), "detail": rows.details[index]}
        found["reply"] = json.loads(rows.replies[index])
    return found


def _print(found: dict[str, Any], decode: Callable[[Sequence[int]], str]) -> None:
    console = output()
    ids = found["input_ids"]
    made = len(ids) - found["prompt_length"]
    head = f"{found['row_id']}  {found['verdict']}  {found['prompt_length']} prompt + {made} output ids"
    console.print(head, style="bold", highlight=False, soft_wrap=True, markup=False)
    if found.get("detail"):
        place = f" at {found['verdict_offset']}" if found["verdict_offset"] >= 0 else ""
        console.print(f"{found['detail']}{place}", style="red", highlight=False, soft_wrap=True, markup=False)
    segments = [Segment(part["kind"], part["start"], part["stop"]) for part in found["segments"]]
    print_sequence(console, ids, segments, decode)
    console.print()
