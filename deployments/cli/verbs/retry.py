"""`rawseq retry STORE`: failed, named, damaged or rejected work again, as new receipt generations."""

import click

from deployments.cli.arguments import Access, store_options
from deployments.cli.console import Terminal
from deployments.cli.job_record import stored_job
from deployments.cli.verbs.run import report
from tasks.errors import JobError


@click.command(short_help="Make failed, named or rejected work again.")
@click.argument("store")
@click.option("--batches", metavar="3,7-9", help="Numbers of batches; all of them when left out.")
@click.option("--rejected", multiple=True, metavar="CODE", help="Make rejected rows of this code again.")
@click.option("--server", metavar="URL", help="Make all rows again that this server made.")
@click.option(
    "--workers", type=click.IntRange(1, 1000), default=1, help="Flow runs that make batches at once."
)
@store_options
@click.option("--set", "settings", multiple=True, metavar="PATH=VALUE", help="Override a field of the job.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, logs on stderr.")
def retry(
    store: str,
    access: Access,
    batches: str | None,
    rejected: tuple[str, ...],
    server: str | None,
    workers: int,
    settings: tuple[str, ...],
    as_json: bool,
) -> int:
    """Make batches of STORE again: without a receipt, named, with such rejected rows, with a server's rows.

    All other rows of a committed batch are copied verbatim; only the named rows are made.
    """
    from deployments.cli.flow import run_retry

    numbers = batch_numbers(batches) if batches is not None else []
    job = stored_job(store, settings, access)
    summary = run_retry(job, numbers, list(rejected), server, workers, Terminal(stderr=True))
    return report(summary, as_json)


def batch_numbers(text: str) -> list[int]:
    """Return the numbers of `3,7-9`, ascending.

    Raises:
        JobError: it is not a list of numbers and closed ranges.
    """
    numbers: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise JobError(f"--batches: expected numbers and ranges like 3,7-9, got {text!r}")
        if int(last or first) < int(first) or int(last or first) > 10_000_000:
            raise JobError(f"--batches: expected ascending ranges within 0-10000000, got {part.strip()!r}")
        numbers.update(range(int(first), int(last or first) + 1))
    return sorted(numbers)
