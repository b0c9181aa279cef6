"""Embedded servers for the fault tables, and what an undisturbed run gives."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from deployments.standin.faults import FAULTS
from deployments.standin.launch import Standin
from tests.support.embedded import COUNT, Nursery, Right, fleet_settings, ids_by_row, rows, send, switch
from tests.support.scripted import ListLane

ALL_SWITCHES = tuple(
    name for name in FAULTS if not name.startswith(("loading", "refuse", "keepalive", "crash"))
)


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    """Servers of one test."""
    nursery = Nursery(tmp_path)
    yield nursery
    nursery.end()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standin]:
    """One embedded server for all faults that leave its process alive."""
    nursery = Nursery(tmp_path_factory.mktemp("standin"))
    yield nursery.start()
    nursery.end()


@pytest.fixture(scope="session")
def right(shared: Standin) -> Right:
    """What an undisturbed run gives, id for id."""
    lane = ListLane(rows(COUNT))
    asyncio.run(send(lane, fleet_settings(shared.url)))
    return ids_by_row(list(lane.by_row().values()))


@pytest.fixture
async def quiet(shared: Standin) -> AsyncIterator[Standin]:
    """The shared server, with all switches off after the test."""
    yield shared
    await switch(shared.url, **dict.fromkeys(ALL_SWITCHES))
