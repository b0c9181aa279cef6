"""What the tests of old stores share: one embedded server, one S3 server, one process that forks commands."""

import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deployments.cli.cli import cli
from deployments.local.seaweed import Seaweed, start_seaweed
from deployments.standin.launch import Standin, start_standin
from tests.compatibility.stored import Stored, placed, uploaded
from tests.conftest import RUN_SECONDS
from tests.support.forked import Template
from tests.support.jobs import Ran

Opened = Callable[[str], Stored]
Command = Callable[..., Ran]
Verb = Callable[..., tuple[int, list[dict[str, Any]]]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standin]:
    """A stand-in whose rows are the same however they are batched."""
    flags = ["--enable-deterministic-inference"]
    standin = start_standin(flags, tmp_path_factory.mktemp("standin") / "log")
    yield standin
    standin.end()


@pytest.fixture(scope="module")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """A real S3 server with one bucket."""
    with start_seaweed(tmp_path_factory.mktemp("s3"), bucket="rawseq") as started:
        yield started


@pytest.fixture
def opened(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Opened]:
    """Copy a store to where a test may change it: to S3 when its name begins so."""
    copies: list[Stored] = []

    def open_copy(name: str) -> Stored:
        if name.startswith("s3"):
            copies.append(uploaded(name, tmp_path, request.getfixturevalue("seaweed")))
        else:
            copies.append(placed(name, tmp_path))
        return copies[-1]

    yield open_copy
    for copy in copies:
        copy.objects.close()


@pytest.fixture
def command(template: Template, server: Standin) -> Command:
    """Run `rawseq VERB …`, which makes rows on the stand-in, in a store's folder; returns what it left."""
    numbers = itertools.count()

    def run(stored: Stored, *arguments: str) -> Ran:
        log = stored.folder / f"rawseq-{next(numbers)}.log"
        out = log.with_suffix(".out")
        # a worker that was killed is silent since the copy was made
        settings = ["--set", f"servers.urls=['{server.url}']", "--set", "batch.lease_seconds=3"]
        pid = template.start(log, *arguments, *settings, "--json", out=out, env=stored.env)
        status = template.wait(pid, RUN_SECONDS)
        return Ran(status, [json.loads(line) for line in out.read_text().splitlines()], log.read_text())

    return run


@pytest.fixture
def verb(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Verb:
    """Run a verb that only reads, in this process and a store's folder; returns status and JSON objects."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)

    def run(stored: Stored, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
        monkeypatch.chdir(stored.folder)
        for name, value in stored.env.items():
            monkeypatch.setenv(name, value)
        capsys.readouterr()
        status = cli.main([*arguments, "--json"], standalone_mode=False)
        return status, [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run
