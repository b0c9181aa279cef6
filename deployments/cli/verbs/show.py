"""`rawseq show STORE`: sequences as they lie in the shard, segments coloured and named; where two differ."""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import click

from deployments.cli.arguments import Access, opened_store, store_options
from deployments.cli.console import output, print_difference, print_ids, print_sequence
from deployments.cli.job_record import job_record, vocabulary_of
from tasks.dataset.shard import ShardRows
from tasks.dataset.some_rows import Wanted, peek
from tasks.errors import JobError
from tasks.report.difference import differences
from tasks.rows.records import Segment
from tasks.rows.verdicts import Code
from tasks.store.contract import ObjectStore
from tasks.tokenizer.vocabulary import Vocabulary


@click.command(short_help="Sequences as stored, segment by segment.")
@click.argument("store", metavar="STORE", required=False)
@click.option("--row", "row_ids", multiple=True, metavar="ID", help="The row with this id; may be repeated.")
@click.option(
    "--rejected",
    is_flag=False,
    flag_value="",
    metavar="[CODE]",
    help="Rejected rows, of one code or of all, with code, offset and detail.",
)
@click.option(
    "--n", "count", default=3, show_default=True, metavar="K", type=click.IntRange(1), help="How many rows."
)
@click.option("--skip", default=0, metavar="K", type=click.IntRange(0), help="Leave out the first K rows.")
@click.option("--ids", "all_ids", is_flag=True, help="Every id with what it spells.")
@click.option(
    "--diff", is_flag=True, help="Where two --row differ; one row: where the ids of its own text would."
)
@store_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object a row on stdout, then a summary.")
def show(
    store: str | None,
    access: Access,
    row_ids: tuple[str, ...],
    rejected: str | None,
    count: int,
    skip: int,
    all_ids: bool,
    diff: bool,
    as_json: bool,
) -> int:
    """Print rows of STORE: ids beside text, each segment in its colour.

    Only what is shown is fetched, and no digest is checked: `verify` does that.
    """
    store, rejected = _arguments(store, rejected)
    if diff and len(row_ids) > 2:
        raise JobError(f"--diff: expected at most two --row, got {len(row_ids)}")
    with opened_store(store, access) as (opened, _):
        vocabulary = vocabulary_of(opened)
        found = list(_found(opened, store, _wanted(row_ids, rejected), count, skip))
    for row in found:
        row["text"] = vocabulary.decode(row["input_ids"])
    told = _compared(found, row_ids, vocabulary) if diff else found
    for row in told:
        if as_json:
            click.echo(json.dumps(row))
        elif diff:
            print_difference(output(), row)
        else:
            _print(row, vocabulary, all_ids)
    if as_json:
        click.echo(json.dumps({"summary": {"rows": len(found)}}))
    elif not row_ids:
        click.echo(_further(len(found), count, skip), err=True)
    return 0


def _further(shown: int, count: int, skip: int) -> str:
    """Return the line under a page: where the next one begins."""
    if not shown:
        return f"no {'more ' * bool(skip)}rows"
    return f"rows {skip + 1} to {skip + shown}" + (f"; on: --skip {skip + shown}" if shown == count else "")


def _arguments(store: str | None, rejected: str | None) -> tuple[str, str | None]:
    """Return STORE and the code; in `show --rejected STORE` the command line takes STORE for the code."""
    if store is None and rejected and rejected not in list(Code):
        return rejected, ""
    if store is None:
        raise click.UsageError("Missing argument 'STORE'.")
    return store, rejected


def _wanted(row_ids: tuple[str, ...], rejected: str | None) -> Wanted:
    if rejected and rejected not in list(Code):
        raise JobError(f"--rejected: expected a code ({', '.join(Code)}), got {rejected!r}")
    return Wanted(frozenset(row_ids), rejected is not None, rejected or "")


def _found(
    opened: ObjectStore, store: str, wanted: Wanted, count: int, skip: int
) -> Iterator[dict[str, Any]]:
    most = len(wanted.row_ids) or count
    rows = peek(opened, job_record(opened)["job_id"], wanted, 0 if wanted.row_ids else skip)
    missing = set(wanted.row_ids)
    for found in islice(rows, most):
        missing.discard(found.row_ids[0])
        yield _described(found)
    if missing:
        raise JobError(f"--row {min(missing)}: no such row in {store}")


def _described(rows: ShardRows) -> dict[str, Any]:
    found = {
        "row_id": rows.row_ids[0],
        "verdict": rows.verdicts[0],
        "input_ids": rows.sequences.row(0).tolist(),
        "prompt_length": int(rows.prompt_lengths[0]),
        "segments": [{"kind": s.kind, "start": s.start, "stop": s.stop} for s in rows.segments[0]],
        "finish_reason": rows.finish_reasons[0],
        "matched_stop": rows.matched_stops[0],
        "extends_previous": bool(rows.extends[0]),
        "metadata": json.loads(rows.metadata[0]),
    }
    if rows.offsets is not None:
        found |= {"verdict_offset": int(rows.offsets[0]), "detail": rows.details[0]}
        found["reply"] = json.loads(rows.replies[0])
    return found


def _compared(
    found: list[dict[str, Any]], row_ids: tuple[str, ...], vocabulary: Vocabulary
) -> list[dict[str, Any]]:
    """Return where the rows that were found differ: the two that were named, else each from its own text."""
    if len(row_ids) == 2:
        one, other = sorted(found, key=lambda row: row_ids.index(row["row_id"]))
        return [_difference(one, other["row_id"], other["input_ids"], vocabulary)]
    again = [vocabulary.dialect.encode(row["text"]) for row in found]
    return [
        _difference(row, "its own text, encoded again", ids, vocabulary)
        for row, ids in zip(found, again, strict=True)
    ]


def _difference(row: dict[str, Any], name: str, other: list[int], vocabulary: Vocabulary) -> dict[str, Any]:
    ids = row["input_ids"]
    return {
        "row_id": row["row_id"],
        "against": name,
        "same": ids == other,
        "differences": [
            {
                "start": part.start,
                "ids": ids[part.start : part.stop],
                "text": [vocabulary.name_of(i) for i in ids[part.start : part.stop]],
                "other_start": part.other_start,
                "other_ids": other[part.other_start : part.other_stop],
                "other_text": [vocabulary.name_of(i) for i in other[part.other_start : part.other_stop]],
            }
            for part in differences(ids, other)
        ],
    }


def _print(found: dict[str, Any], vocabulary: Vocabulary, all_ids: bool) -> None:
    console = output()
    ids = found["input_ids"]
    made = len(ids) - found["prompt_length"]
    head = f"{found['row_id']}  {found['verdict']}  {found['prompt_length']} prompt + {made} output ids"
    console.print(head, style="bold", highlight=False, soft_wrap=True, markup=False)
    if found.get("detail"):
        place = f" at {found['verdict_offset']}" if found["verdict_offset"] >= 0 else ""
        console.print(f"{found['detail']}{place}", style="red", highlight=False, soft_wrap=True, markup=False)
    segments = [Segment(part["kind"], part["start"], part["stop"]) for part in found["segments"]]
    if all_ids:
        print_ids(console, ids, segments, vocabulary)
    else:
        print_sequence(console, ids, segments, vocabulary.decode, tuple(vocabulary.control_ids))
    console.print()
