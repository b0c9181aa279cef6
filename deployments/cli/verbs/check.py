"""`rawseq check FILE`: anybody's token data against the grammar of a tokenizer."""

import json
from collections import Counter
from pathlib import Path

import click

from deployments.cli.console import output, verdict_table
from deployments.cli.model_options import model_options, model_spec
from tasks.errors import SourceError
from tasks.grammar.grammar import Grammar
from tasks.rows.verdicts import Code, accepted_codes

SHOWN_REFUSALS = 20


@click.command(short_help="Judge anybody's token data by the grammar.")
@click.argument("file", type=click.Path())
@model_options
@click.option(
    "--accept",
    type=click.Choice(["canonical", "intact"]),
    default="canonical",
    show_default=True,
    help="What counts as accepted, as policy.accept of a job.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a row on stdout, then a summary.")
def check(
    file: str,
    tokenizer: str | None,
    revision: str | None,
    trust_remote_code: bool,
    template_args: tuple[str, ...],
    accept: str,
    as_json: bool,
) -> int:
    """Give each row of FILE its verdict. Exit 0 when all are accepted, else 1.

    FILE is JSONL, Parquet or an Arrow stream (or a folder of them, as an export is) with `prompt_ids` and
    `output_ids`, `input_ids` and `prompt_length`, or `input_ids` and `loss_mask`, of which each supervised
    span is an output.
    """
    from tasks.grammar.grammar import discover_grammar
    from tasks.tokenizer.vocabulary import load_vocabulary

    if not file:
        raise SourceError("FILE: expected a file or a folder, got an empty text")
    spec = model_spec(tokenizer, revision, trust_remote_code, template_args)
    grammar = discover_grammar(load_vocabulary(spec))
    counts, accepted = _judge(Path(file), grammar, accepted_codes(accept, "keep"), as_json)
    total = sum(counts.values())
    summary = {"rows": total, "accepted": accepted, "rejected": total - accepted, "by_verdict": dict(counts)}
    if as_json:
        click.echo(json.dumps({"summary": summary}))
    else:
        console = output()
        console.print(verdict_table(counts))
        console.print(f"{accepted} of {total} rows accepted", style="bold", highlight=False)
    return 0 if accepted == total else 1


def _judge(file: Path, grammar: Grammar, good: frozenset[Code], as_json: bool) -> tuple[Counter[str], int]:
    """Print the rows' verdicts: all as JSON, else the first refused ones; return counts and accepted rows."""
    from tasks.grammar.foreign import judge_files
    from tasks.turns.inspect_row import describe_verdict

    counts: Counter[str] = Counter()
    accepted = 0
    console = output()
    for row in judge_files(file, grammar):
        verdict = row.verdict
        counts[str(verdict.code)] += 1
        accepted += verdict.code in good
        if as_json:
            click.echo(
                json.dumps({"file": str(row.path), "line": row.line} | describe_verdict(row.row_id, verdict))
            )
        elif verdict.code not in good and sum(counts.values()) - accepted <= SHOWN_REFUSALS:
            text = f"{row.path}:{row.line}: {verdict.code} at {verdict.offset}: {verdict.detail}"
            console.print(text, style="red", highlight=False, soft_wrap=True, markup=False)
    return counts, accepted
