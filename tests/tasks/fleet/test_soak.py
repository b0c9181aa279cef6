"""Many rows through two embedded servers while faults come and go at random and processes are killed.

`RAWSEQ_SOAK_ROWS` sets how many (default 300), `RAWSEQ_SOAK_SEED` repeats a run; `make soak` takes 20,000.
"""

import asyncio
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from deployments.standin.launch import Standin
from tasks.fleet.dispatch import Dispatch
from tasks.fleet.fleet import Fleet
from tests.support.embedded import (
    SAMPLING,
    VOCAB,
    Nursery,
    counters,
    fleet_settings,
    ids_by_row,
    rows,
    switch,
)
from tests.support.scripted import ListLane

COUNT = int(os.environ.get("RAWSEQ_SOAK_ROWS", "300"))
SEED = int(os.environ.get("RAWSEQ_SOAK_SEED", "0")) or int(time.time())
LANES, CAP = 5, 16
ROWS_PER_FAULT, CALM_SECONDS = 10, 5.0
ROWS_PER_KILL = 250
FAULTS = (
    {"queue_full": "*20"},
    {"error_500_text": "*3"},
    {"abort_200": "aborted*3"},
    {"abort_200": "queue*3"},
    {"empty_ids": "*3"},
    {"wrong_json": "*3"},
    {"truncate_body": "*2"},
    {"reset_before_reply": "*2"},
    {"reset_after_reply": "*2"},
    {"slow_reply": "0.3*5"},
    {"lost_reply": "*1"},
    {"no_output_ids": "*3"},
)


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    """Servers of one test."""
    nursery = Nursery(tmp_path)
    yield nursery
    nursery.end()


async def _torment(
    nursery: Nursery, alive: list[Standin], lanes: list[ListLane], luck: random.Random, over: asyncio.Event
) -> tuple[int, int]:
    """Switch random faults on, kill a server now and then; return the kills and what dead ones made.

    Paced by finished rows, because a busy machine needs seconds to start and probe a server: a fault every
    `ROWS_PER_FAULT` or `CALM_SECONDS`, a kill at most every `ROWS_PER_KILL`.
    """
    kills, made, told, last, since = 0, 0, 0, 0, time.monotonic()
    while not over.is_set():
        await asyncio.sleep(0.1)
        victim, finished = luck.randrange(2), sum(len(lane.completions) for lane in lanes)
        if finished < last + ROWS_PER_FAULT and time.monotonic() < since + CALM_SECONDS:
            continue
        last, since = finished, time.monotonic()
        if finished >= told + 1000:
            told = finished
            print(f"{finished} rows, {kills} kills", flush=True)
        if luck.random() < 0.15 and (kills + 1) * ROWS_PER_KILL <= finished:
            made += (await counters(alive[victim].url))["generations_finished"]
            alive[victim].kill()
            kills += 1
            alive[victim] = await asyncio.to_thread(nursery.start_again, alive[victim])
        else:
            try:
                await switch(alive[victim].url, **luck.choice(FAULTS))
            except aiohttp.ClientError:
                continue  # it is just dying
    return kills, made


@pytest.mark.slow
@pytest.mark.timeout(7200)
async def test_nothing_is_lost_doubled_or_invented(nursery: Nursery) -> None:
    """Every row ends once, with the ids of an undisturbed run; what was generated for nothing is counted."""
    luck, planned = random.Random(SEED), rows(COUNT, cap=CAP)
    print(f"seed {SEED}", flush=True)
    both = [nursery.start(), nursery.start()]
    undisturbed = ListLane(planned)
    async with Fleet(fleet_settings(*(s.url for s in both))) as fleet:
        await fleet.ensure()
        async with Dispatch(fleet, SAMPLING, VOCAB, 50) as dispatch:
            await dispatch.run(undisturbed)
    print(f"undisturbed: {dispatch.stats().finished} rows", flush=True)
    before = sum([(await counters(s.url))["generations_finished"] for s in both])
    lanes = [ListLane(planned[start::LANES]) for start in range(LANES)]
    over = asyncio.Event()
    async with Fleet(fleet_settings(*(s.url for s in both), ready_timeout_seconds=900.0)) as fleet:
        await fleet.ensure()
        tormenting = asyncio.ensure_future(_torment(nursery, both, lanes, luck, over))
        try:
            async with Dispatch(fleet, SAMPLING, VOCAB, 50) as dispatch:
                await asyncio.gather(*(dispatch.run(lane) for lane in lanes))
                stats = dispatch.stats()
        finally:
            over.set()
            kills, finished = await tormenting
    made = [c for lane in lanes for c in lane.by_row().values()]
    told = f"seed {SEED}: {COUNT} rows, {kills} kills, outcomes {stats.outcomes}"
    assert ids_by_row(made) == ids_by_row(undisturbed.completions), told
    finished += sum([(await counters(s.url))["generations_finished"] for s in both]) - before
    print(
        f"{told}; {finished - stats.finished} generations beyond the kept ones, probes and warm-ups included"
    )
