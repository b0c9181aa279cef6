"""A server whose rows fail more often than the others': suspected, tested in pairs, and only then closed."""

import asyncio
from collections.abc import Sequence
from typing import Any

import attrs
import pytest
from aiohttp import web

from tasks.errors import LaterError, UnfaithfulError
from tasks.fleet.fleet import Fleet
from tasks.fleet.server import CLOSED, OPEN
from tasks.fleet.suspicion import EXCESS, LEVEL, Judged, Verdicts, chance
from tasks.rows.records import Completion
from tests.support.scripted import PLAN, QUICK, VOCAB, Scripted, requests, scripted_server, settings

(ROW,) = requests(1)


def _ended_well(completions: Sequence[Completion]) -> list[bool]:
    return [completion.finish_reason == "stop" for completion in completions]


def _judged(url: str, rows: int, failed: int, stratum: str = "s#0 ") -> list[Judged]:
    return [Judged(stratum, url, number >= failed, ROW) for number in range(rows)]


@pytest.mark.parametrize(
    ("rows", "suspected"),
    [
        pytest.param([("a", "x", 200, 4), ("a", "y", 200, 5)], False, id="alike"),
        pytest.param([("a", "x", 200, 4), ("a", "y", 200, 40)], True, id="one fails often"),
        pytest.param([("a", "x", 200, 100), ("a", "y", 200, 100)], False, id="the source is bad"),
        pytest.param([("a", "x", 400, 4), ("b", "y", 400, 200)], False, id="each has a source of its own"),
        pytest.param(
            [("a", "x", 390, 4), ("a", "y", 10, 0), ("b", "x", 10, 5), ("b", "y", 390, 195)],
            False,
            id="one has most of the bad source",
        ),
        pytest.param([("a", "y", 400, 200)], False, id="alone"),
        pytest.param([("a", "x", 10, 0), ("a", "y", 10, 7)], False, id="too few to say"),
    ],
)
def test_who_stands_out(rows: list[tuple[str, str, int, int]], suspected: bool) -> None:
    """Only what fails more often than the others do on rows of the same kind."""
    verdicts = Verdicts()
    for stratum, url, count, failed in rows:
        for row in _judged(url, count, failed, stratum):
            verdicts.add(row)
    excess, deviations = verdicts.deviation("y")
    assert (excess >= EXCESS and deviations >= LEVEL) is suspected
    verdicts.forget("y")
    assert verdicts.deviation("y") == (0.0, 0.0)


def test_the_chance_of_pairs() -> None:
    """One-sided, of a fair coin."""
    assert chance(0, 0) == 1.0
    assert chance(10, 0) == 2**-10
    assert chance(3, 1) == 5 / 16


def _loop(server: Scripted) -> None:
    async def loop(body: dict[str, Any], before: int) -> web.Response:
        cap = body["sampling_params"]["max_new_tokens"]
        meta = {"completion_tokens": cap, "finish_reason": {"type": "length", "length": cap}}
        return web.json_response(server.reply(body, **meta) | {"output_ids": [10] * cap})

    server.hook = loop


@pytest.mark.parametrize("sick", [True, False], ids=["sick", "unlucky"])
async def test_a_suspicion_is_told_and_only_a_paired_test_closes(sick: bool) -> None:
    """One that loops is closed, with the numbers and what to do; one that only had bad luck goes on."""
    told: list[str] = []
    async with scripted_server() as sound, scripted_server() as suspect:
        if sick:
            _loop(suspect)
        async with Fleet(settings(sound.url, suspect.url), told.append) as fleet:
            await fleet.ensure()
            server = fleet.servers[1]
            rows = [*_judged(sound.url, 100, 1), *_judged(suspect.url, 100, 40)]
            fleet.suspicions.add(rows, _ended_well, PLAN.sampling, VOCAB)
            assert server.suspicion.startswith("20 rows more than its share failed")
            assert server.state == OPEN
            async with asyncio.timeout(30):
                while server.state == OPEN and server.suspicion:  # noqa: ASYNC110  nothing tells a test of it
                    await asyncio.sleep(0.01)
    assert f"{suspect.url}: suspicion: 20 rows" in told[0]
    if sick:
        assert server.state == CLOSED
        assert isinstance(server.error, UnfaithfulError)
        assert "of 32 rows made on both, 32 failed there only and 0 elsewhere only" in str(server.error)
        assert f"rawseq retry STORE --server {suspect.url}" in str(server.error)
    else:
        assert server.state == OPEN
        assert "suspicion withdrawn: of 32 rows made on both, 0 failed there only" in told[-1]


@pytest.mark.parametrize("wrong", ["silent", "refuses", "store away"])
async def test_a_paired_test_that_comes_to_nothing_closes_nobody_else(wrong: str) -> None:
    """No pair is made, or the note cannot be kept: it is told, and the sound server goes on."""
    told: list[str] = []
    hurried = attrs.evolve(QUICK, deadline_floor_seconds=0.05)
    async with scripted_server() as sound, scripted_server() as suspect:

        async def answer(body: dict[str, Any], before: int) -> web.Response:
            if wrong == "silent":
                await asyncio.Event().wait()
            return web.Response(status=500)

        suspect.hook = answer
        if wrong == "store away":
            _loop(suspect)
        async with Fleet(settings(sound.url, suspect.url, patience=hurried), told.append, Away()) as fleet:
            await fleet.ensure()
            rows = [*_judged(sound.url, 100, 1), *_judged(suspect.url, 100, 40)]
            fleet.suspicions.add(rows, _ended_well, PLAN.sampling, VOCAB)
            ends = "is not kept beside the data" if wrong == "store away" else "not decided"
            async with asyncio.timeout(30):
                while not any(ends in line for line in told):  # noqa: ASYNC110  nothing tells a test of it
                    await asyncio.sleep(0.01)
            states = [server.state for server in fleet.servers]
    assert states == [OPEN, CLOSED if wrong == "store away" else OPEN], told


class Away:
    """A dataset whose store takes no note of a suspicion."""

    async def first(self) -> dict[str, Any] | None:
        """Return none."""
        return None

    async def begin(self, mine: dict[str, Any]) -> bool:
        """Take the first server's."""
        return True

    async def refused(self, other: dict[str, Any]) -> None:
        """Keep nothing."""

    async def allowed(self) -> list[dict[str, Any]]:
        """Return none."""
        return []

    async def admitted(self, url: str, described: dict[str, Any]) -> None:
        """Take an admission, and no suspicion."""
        if "suspicion" in described:
            raise LaterError("the store is away")
