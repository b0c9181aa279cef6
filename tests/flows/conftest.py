"""Commands of the flow tests are forked from one process that has everything imported."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments.local.seaweed import Seaweed, start_seaweed
from tests.conftest import RUN_SECONDS, free_port, prefect_server
from tests.flows.forked import Fault, Template
from tests.flows.postgres import running_postgres
from tests.support.jobs import Ran, Rawseq


@pytest.fixture(scope="session")
def template(rawseq_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Template]:
    """One template for the session; its commands find the session's Prefect server."""
    with Template(rawseq_env, tmp_path_factory.mktemp("template") / "log") as opened:
        yield opened


@pytest.fixture
def rawseq(template: Template, tmp_path: Path) -> Rawseq:
    """Run `rawseq ARGUMENTS` in the test's folder with `--json` and return what it left."""
    numbers = itertools.count()

    def run(*arguments: str, env: dict[str, str] | None = None, fault: Fault | None = None) -> Ran:
        log = tmp_path / f"rawseq-{next(numbers)}.log"
        out = log.with_suffix(".out")
        pid = template.start(log, *arguments, "--json", out=out, env=env, fault=fault)
        status = template.wait(pid, RUN_SECONDS)
        return Ran(status, [json.loads(line) for line in out.read_text().splitlines()], log.read_text())

    return run


@pytest.fixture(scope="module")
def postgres_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prefect server over a PostgreSQL; yields its API URL."""
    port = free_port()
    with (
        running_postgres(free_port()) as database,
        prefect_server(
            tmp_path_factory.mktemp("prefect"), port, PREFECT_SERVER_DATABASE_CONNECTION_URL=database
        ),
    ):
        yield f"http://127.0.0.1:{port}/api"


@pytest.fixture(scope="module")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """A real S3 server with one bucket."""
    with start_seaweed(tmp_path_factory.mktemp("s3"), bucket="rawseq") as server:
        yield server
