"""`rawseq export STORE… --to F --out PATH`: committed rows as files that a trainer reads."""

import json
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any, get_args

import click
from pydantic import ValidationError
from rich.table import Table

from deployments.cli.arguments import Access, keys_of, opened_store, store_options, store_spec
from deployments.cli.console import escaped, output
from tasks.errors import JobError
from tasks.export.masks import BOUNDARIES, SWITCHES
from tasks.export.options import ExportOptions, FormatName
from tasks.store.opening import open_store


@click.command(short_help="Rows as files that a trainer reads.")
@click.argument("stores", metavar="STORE...", nargs=-1, required=True)
@click.option("--to", required=True, type=click.Choice(get_args(FormatName)), help="Which files.")
@click.option("--out", required=True, help="Folder or s3://bucket/prefix; again: goes on.")
@click.option(
    "--weight", "weights", multiple=True, type=float, help="One per STORE: how often its rows come."
)
@click.option("--include", multiple=True, metavar="CODE", help="Take rejected rows of this code in as well.")
@click.option("--mask", multiple=True, type=click.Choice(list(SWITCHES)), help="Ids not to be learnt.")
@click.option("--learn-prefill", is_flag=True, help="Learn the `<think>` that the template wrote.")
@click.option("--boundary", type=click.Choice(list(BOUNDARIES)), help="Mask for a trainer's own shift [raw].")
@click.option("--max-length", type=int, help="Longest sequence, in ids.")
@click.option("--over-length", type=click.Choice(["cut", "drop"]), help="What becomes of a longer one [cut].")
@click.option("--dedup", type=click.Choice(["rows", "prompts", "none"]), help="What comes once [rows].")
@click.option("--merge-turns", is_flag=True, help="Turns that extend each other become one sequence.")
@click.option("--eval-share", type=float, help="Share of source records that go to eval/ [0].")
@click.option("--seed", type=int, help="Of the split and of fractional weights [0].")
@click.option("--file-tokens", type=int, help="Ids per file [256 Mi for specforge, else 64 Mi].")
@click.option("--draft-vocab", type=int, metavar="N", help="Also write d2t and t2d of so many ids.")
@store_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, lines on stderr.")
def export(
    stores: tuple[str, ...],
    access: Access,
    out: str,
    weights: tuple[float, ...],
    as_json: bool,
    **fields: Any,
) -> int:
    """Write the accepted rows of STOREs for a trainer, with loss masks and a manifest of digests.

    A store need not be complete. Killed and run again it goes on with the receipts that it began with.
    """
    from tasks.export.open import export_opened

    options = _options(fields)
    shares = _weights(weights, len(stores))
    with ExitStack() as stack:
        reach = _reach(access, (*stores, out))
        found = [stack.enter_context(opened_store(store, reach(store))) for store in stores]
        opened, keys = [each.store for each in found], [each.credentials for each in found]
        to = store_spec(out, "--out", reach(out))
        place = stack.enter_context(closing(open_store(to, credentials=keys_of(to))))
        report = export_opened(opened, shares, options, place, _say, credentials=keys)
    if as_json:
        click.echo(json.dumps(report))
    else:
        _print(report)
    return 0


def _reach(access: Access, addresses: tuple[str, ...]) -> Callable[[str], Access]:
    """Return how each address is reached: what was typed is of those on S3, of all of them when none is."""
    remote = [address for address in addresses if address.startswith("s3://")]
    return lambda address: access if not remote or address in remote else Access()


def _options(fields: dict[str, Any]) -> ExportOptions:
    given = {name: value for name, value in fields.items() if value is not None}
    try:
        return ExportOptions(**given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = f"--{first['loc'][0]}".replace("_", "-") if first["loc"] else "--"
        text = first["msg"].removeprefix("Value error, ")
        raise JobError(f"{where}: {text}, got {first['input']!r}" if first["loc"] else f"--{text}") from None


def _weights(weights: tuple[float, ...], count: int) -> list[float]:
    if weights and len(weights) != count:
        raise JobError(f"--weight: expected one for each of the {count} stores or none, got {len(weights)}")
    if bad := [weight for weight in weights if not 0 < weight <= 1000]:
        raise JobError(f"--weight: expected a number in (0, 1000], got {bad[0]}")
    return list(weights) or [1.0] * count


def _say(line: str) -> None:
    click.echo(escaped(line), err=True)


def _print(report: dict[str, Any]) -> None:
    console = output()
    rows, parts = report["rows"], [entry for entry in report["files"] if "split" in entry]
    size = sum(entry["bytes"] for entry in report["files"])
    learnt, all_ids = sum(report["supervised"].values()), sum(report["tokens"].values())
    lines = [
        f"{report['state']}: {report['out']}",
        f"rows    {rows['written']['train']} train + {rows['written']['eval']} eval of {rows['read']} read",
        f"ids     {all_ids}, {learnt} of them supervised",
        f"files   {len(parts)} with rows, {len(report['files'])} in all, {size} bytes (manifest.json)",
    ]
    left = {"repeated": rows["repeated"], "left out by weight": rows["left_out_by_weight"], **rows["refused"]}
    if any(left.values()):
        lines.append("left    " + ", ".join(f"{count} {why}" for why, count in left.items() if count))
    if rows["cut"]:
        lines.append(f"cut     {rows['cut']} rows, {report['supervised_lost_by_cut']} supervised ids lost")
    if draft := report.get("draft_vocab"):
        lines.append(
            f"draft   {draft['size']} ids cover {draft['share_of_supervised']:.2%} of supervised ids"
        )
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    console.print(_length_table(report["lengths"]))


def _length_table(costs: list[dict[str, Any]]) -> Table:
    table = Table(
        "max length", "rows longer", "nothing left", "lost by cut", "lost by drop", title_justify="left"
    )
    table.title = "supervised ids that a longest length would lose"
    for cost in costs:
        table.add_row(
            str(cost["longest"]),
            str(cost["rows_longer"]),
            str(cost["rows_without"]),
            f"{cost['lost_by_cut']} ({cost['share_lost_by_cut']:.2%})",
            f"{cost['lost_by_drop']} ({cost['share_lost_by_drop']:.2%})",
        )
    return table
