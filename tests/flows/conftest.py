"""Servers of the flow tests: Prefect over PostgreSQL, and S3."""

from collections.abc import Iterator

import pytest

from deployments.local.seaweed import Seaweed, start_seaweed
from tests.conftest import free_port, prefect_server
from tests.flows.postgres import running_postgres


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
