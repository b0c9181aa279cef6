"""Which event loops the tests of this room run on."""

import asyncio
from collections.abc import Callable, Iterator, Mapping

import pytest
import uvloop

from tasks.fleet.watchdog import Watchdog
from tests.support.held_clock import HeldLoop

PROCESSES = frozenset({"nursery", "quiet"})
"""Fixtures that start servers: what those tests cost is not paid twice."""


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run every test on uvloop, as `rawseq run` does, and those without processes on asyncio's loop too."""
    fixtures = set(getattr(item, "fixturenames", ()))
    if "held_clock" in fixtures:
        return {"held": HeldLoop}
    both = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.SelectorEventLoop}
    return {"uvloop": uvloop.new_event_loop} if PROCESSES & fixtures else both


@pytest.fixture
async def held_clock() -> HeldLoop:
    """Return the test's loop, whose clock it moves."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, HeldLoop)
    return loop


@pytest.fixture(autouse=True)
def watchdog_lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the watchdog tells: nothing, but in a test that makes it tell something and clears it."""
    lines: list[str] = []
    tell = Watchdog._tell

    def record(watchdog: Watchdog, line: str) -> None:
        lines.append(line)
        tell(watchdog, line)

    monkeypatch.setattr(Watchdog, "_tell", record)
    yield lines
    assert lines == []
