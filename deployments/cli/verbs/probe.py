"""`rawseq probe URL|STORE`: what a server does to ids, or what an object store honours, with evidence."""

import asyncio
import json

import click

from deployments.cli.arguments import Access, keys_of, store_options, store_spec
from deployments.cli.console import checks_table, output
from deployments.cli.model_options import model_options, model_spec
from tasks.errors import JobError
from tasks.job.jobfile import build_section
from tasks.job.spec import ServersSpec
from tasks.sglang.probe import ProbeReport

READY_SECONDS = 30.0
"""A person waits: a server that loads a model for minutes is asked again later."""


@click.command(short_help="Show what a server or an object store does.")
@click.argument("target", metavar="URL|STORE")
@model_options
@click.option("--api-key-env", help="Name of the environment variable that holds the API key.")
@store_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def probe(
    target: str,
    access: Access,
    tokenizer: str | None,
    revision: str | None,
    trust_remote_code: bool,
    template_args: tuple[str, ...],
    api_key_env: str | None,
    as_json: bool,
) -> int:
    """Show what an SGLang server does to token ids, or what an object store honours.

    A server (http://…) is asked "What is 2+2?" with ids; the closer and the end are forced. Exit 0 faithful,
    1 unfaithful, 4 unknown. A store (folder or s3://…) gets a few small objects and loses them again. Exit 0
    usable, 1 not.
    """
    if not target.startswith(("http://", "https://")):
        return _probe_store(target, access, as_json)
    if access != Access():
        raise JobError("--endpoint-url, --credentials-block: expected beside a store, got a server")
    from tasks.run.probing import probe_one

    model = model_spec(tokenizer, revision, trust_remote_code, template_args)
    given = {"urls": [target], "api_key_env": api_key_env, "ready_timeout_seconds": READY_SECONDS}
    servers = build_section(ServersSpec, given, "URL")
    report = asyncio.run(probe_one(model, servers))
    if as_json:
        click.echo(json.dumps(report.describe()))
    else:
        _print(report)
    return {"faithful": 0, "unfaithful": 1}.get(report.verdict, 4)


def _print(report: ProbeReport) -> None:
    console = output()
    answer = report.describe()
    for line in report.lines()[:3]:
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    rows = [{**check, "name": f"{check['channel']} {check['name']}"} for check in answer["checks"]]
    console.print(checks_table(f"{answer['url']}: {answer['verdict']}", rows))
    console.print(
        f"natural answer: {answer['natural']['text']}", highlight=False, soft_wrap=True, markup=False
    )


def _probe_store(uri: str, access: Access, as_json: bool) -> int:
    from tasks.store.probe import prepare_store

    spec = store_spec(uri, access=access)
    store, found = prepare_store(spec, credentials=keys_of(spec))
    store.close()
    answer = found.as_json()
    if as_json:
        click.echo(json.dumps(answer))
    else:
        console = output()
        console.print(checks_table(f"{answer['store']}: {answer['verdict']}", answer["checks"]))
        modes = ", ".join(f"{name} {value}" for name, value in answer["modes"].items())
        console.print(f"modes that follow: {modes}", highlight=False, soft_wrap=True)
    return 0 if found.usable else 1
