"""`rawseq demo`: the main job against the embedded server, into an embedded S3 server, no GPU."""

import os
from contextlib import ExitStack
from pathlib import Path

import click
import yaml

from deployments.cli.arguments import store_spec
from deployments.cli.console import Terminal, output
from deployments.cli.verbs.run import report
from deployments.local.demo import DemoHome
from deployments.local.presets import demo_job
from tasks.job.spec import JobSpec

PARSER = "kimi_k2"
"""The demo's server starts with the flag on, so that the flow has something to find and switch off."""


@click.command(short_help="Try it: the main job against an embedded server.")
@click.option(
    "--store", "uri", metavar="URI", help="A folder or s3:// address instead of the embedded S3 server."
)
@click.option("--rows", metavar="N", type=click.IntRange(1), help="Plan at most this many prompts.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, logs on stderr.")
def demo(uri: str | None, rows: int | None, as_json: bool) -> int:
    """Run the main job against the embedded server. Again: resumes, or does nothing and says so."""
    from deployments.cli.flow import quiet_prefect, run_generate

    console = Terminal(stderr=True)
    quiet_prefect(console)
    home = DemoHome(Path.cwd())
    given = store_spec(uri, "--store") if uri is not None else None
    with ExitStack() as stack:
        stack.enter_context(home.alone())
        store = given or stack.enter_context(home.store())
        place = f"store     {store.uri}" + (f" at {store.endpoint_url}" if store.endpoint_url else "")
        console.print(place, highlight=False, soft_wrap=True, markup=False)
        home.end_standins()
        stack.callback(home.end_standins)
        url = _start_standin(home)
        console.print(f"server    {url} (embedded stand-in, started with --reasoning-parser {PARSER})")
        job = demo_job(url, store, home.folder / "journals", rows)
        _keep_job_file(job, home.folder / "job.yaml")
        if uri is None:
            os.environ.update({name.upper(): value for name, value in home.credentials.items()})
        summary = run_generate(job, console)
    status = report(summary, as_json)
    if not as_json:
        _print_next_steps(uri)
    return status


def _start_standin(home: DemoHome) -> str:
    from deployments.standin.launch import start_standin

    argv = [
        f"--reasoning-parser={PARSER}",
        "--enable-deterministic-inference",
        "--served-model-name",
        home.marker,
    ]
    return start_standin(argv, home.folder / "standin.log").url


def _keep_job_file(job: JobSpec, path: Path) -> None:
    path.write_text(yaml.safe_dump(job.model_dump(exclude_defaults=True), sort_keys=False))


def _print_next_steps(uri: str | None) -> None:
    place = uri if uri is not None else "demo"
    verbs = f"rawseq show {place} · rawseq status {place} · rawseq verify {place}"
    line = f"look      {verbs} · rawseq publish {place} --out report"
    output().print(line, highlight=False, soft_wrap=True, markup=False)
