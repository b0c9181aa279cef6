"""`rawseq run JOB.yaml`: one run of the main flow; running it again resumes."""

import json
from pathlib import Path

import click

from deployments.cli.console import Terminal, output, verdict_table
from tasks.job.jobfile import load_job
from tasks.report.summary import Summary


@click.command(short_help="Make every row of a job; again: resumes.")
@click.argument("job", type=click.Path(path_type=Path))
@click.option(
    "--set", "settings", multiple=True, metavar="PATH=VALUE", help="Override a field of the job file."
)
@click.option(
    "--workers",
    type=click.IntRange(1, 1000),
    default=1,
    help="Flow runs that make batches at once, on a work pool that serves generate-range or else here.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, logs on stderr.")
def run(job: Path, settings: tuple[str, ...], workers: int, as_json: bool) -> int:
    """Make every row of JOB (YAML or JSON) that its ledger does not list yet; again: resumes.

    Exit 0 every row accounted for and enough accepted, 1 otherwise, 2 bad job or prompt file, 5 a server,
    bucket, credential or disk that only a person can mend.
    """
    from deployments.cli.flow import run_generate

    summary = run_generate(load_job(job, settings), Terminal(stderr=True), workers)
    return report(summary, as_json)


def report(summary: Summary, as_json: bool) -> int:
    """Print how a run ended; return the exit status."""
    if as_json:
        click.echo(json.dumps(summary.as_json()))
        return 1 if summary.problem else 0
    console = output()
    for line in summary_lines(summary):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    if summary.rows["by_verdict"]:
        console.print(verdict_table(summary.rows["by_verdict"]))
    for batch, error in summary.failures:
        console.print(
            f"batch {batch} failed: {error}", style="red", highlight=False, soft_wrap=True, markup=False
        )
    if summary.problem:
        console.print(
            f"failed: {summary.problem}", style="bold red", highlight=False, soft_wrap=True, markup=False
        )
    return 1 if summary.problem else 0


def summary_lines(summary: Summary) -> list[str]:
    """Return the few lines that tell a person how it went."""
    batches, rows, tokens = summary.as_json()["batches"], summary.rows, summary.tokens
    made, total = summary.generated_rows, batches["total"]
    if batches["skipped"] == total:
        first = f"every batch was already committed ({total} of {total}): nothing generated"
    elif not made and not summary.problem:
        first = "nothing generated: of the rows that were left, none may be sent (see the verdicts)"
    else:
        pace = f", {summary.generated_tokens / summary.seconds:,.0f} tokens/s" if summary.seconds else ""
        first = f"{made} rows generated in {summary.seconds:.1f} s{pace}"
    return [
        first,
        f"batches {batches['committed']} of {batches['total']} committed ({batches['skipped']} before)",
        f"rows    {rows['total']} = {rows['accepted']} accepted + {rows['rejected']} rejected",
        f"tokens  {tokens['prompt']} prompt + {tokens['output']} output",
        f"store   {summary.store}",
        f"report  {summary.store}/report.html",
    ]
