"""`rawseq continue STORE`: rows that were cut by length, taken up where they stopped."""

import click

from deployments.cli.arguments import Access, store_options
from deployments.cli.console import Terminal
from deployments.cli.job_record import stored_job
from deployments.cli.verbs.run import report


@click.command(name="continue", short_help="Take up rows that were cut by length.")
@click.argument("store")
@click.option(
    "--max-new-tokens",
    required=True,
    type=click.IntRange(1),
    metavar="N",
    help="Ids that each cut row may grow by.",
)
@store_options
@click.option(
    "--workers", type=click.IntRange(1, 1000), default=1, help="Flow runs that make batches at once."
)
@click.option("--set", "settings", multiple=True, metavar="PATH=VALUE", help="Override a field of the job.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, logs on stderr.")
def extend(
    store: str, access: Access, max_new_tokens: int, workers: int, settings: tuple[str, ...], as_json: bool
) -> int:
    """Send the ids of every cut row of STORE back with more room; the other rows are copied verbatim."""
    from deployments.cli.flow import run_continue

    summary = run_continue(
        stored_job(store, settings, access), max_new_tokens, workers, Terminal(stderr=True)
    )
    return report(summary, as_json)
