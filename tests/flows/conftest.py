"""Commands of the flow tests are forked from one process that has everything imported."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import RUN_SECONDS
from tests.flows.forked import Fault, Template
from tests.jobs import Ran, Rawseq


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
