"""`rawseq probe URL`: what a server does to token ids, by channel, with evidence."""

import asyncio
import json

import click
from rich.console import Console

from deployments.console import checks_table
from tasks.errors import JobError
from tasks.serving.probe import ProbeReport
from tasks.spec import ModelSpec, ServersSpec


@click.command()
@click.argument("url")
@click.option("--tokenizer", required=True, help="Model name or folder with the tokenizer.")
@click.option("--revision", help="Commit or tag of the model repository.")
@click.option("--trust-remote-code", is_flag=True, help="Run the tokenizer's own code.")
@click.option(
    "--template-arg", "template_args", multiple=True, metavar="K=V", help="Argument of the template."
)
@click.option("--api-key-env", help="Name of the environment variable that holds the API key.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def probe(
    url: str,
    tokenizer: str,
    revision: str | None,
    trust_remote_code: bool,
    template_args: tuple[str, ...],
    api_key_env: str | None,
    as_json: bool,
) -> int:
    """Ask URL "What is 2+2?" with ids, and force the closer and the end.

    Exit 0 faithful, 1 unfaithful, 4 unknown.
    """
    model = ModelSpec(
        tokenizer=tokenizer,
        revision=revision,
        trust_remote_code=trust_remote_code,
        template_args=dict(_argument(text) for text in template_args),
    )
    servers = ServersSpec(urls=[url], api_key_env=api_key_env, ready_timeout_seconds=30.0)
    report = asyncio.run(_probe(model, servers))
    if as_json:
        click.echo(json.dumps(report.describe()))
    else:
        _print(report)
    return {"faithful": 0, "unfaithful": 1}.get(report.verdict, 4)


def _argument(text: str) -> tuple[str, object]:
    import yaml

    name, sign, value = text.partition("=")
    if not sign or not name:
        raise JobError(f"--template-arg {text}: expected name=value, e.g. thinking=true")
    return name, yaml.safe_load(value)


async def _probe(model: ModelSpec, servers: ServersSpec) -> ProbeReport:
    from tasks.probing import probe_one

    return await probe_one(model, servers)


def _print(report: ProbeReport) -> None:
    console = Console()
    answer = report.describe()
    console.print(checks_table(f"{answer['url']}: {answer['verdict']}", answer["checks"]))
    for line in report.lines():
        console.print(line, highlight=False, soft_wrap=True)
