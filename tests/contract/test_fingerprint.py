"""The model's fingerprint on both servers: it repeats itself, and the same weights are the same model."""

import asyncio

import attrs
import numpy as np
import pytest

from tasks.sglang.client import Access, ServerClient
from tasks.sglang.fingerprint import TEXT, Fingerprint, ask_fingerprint, asked_ids, compare, difference
from tests.support.embedded import TEMPLATE, VOCAB, prompt, rows

SAMPLING = {"temperature": 1.0}
IDS = asked_ids(prompt("What is 2+2?"), np.array(TEMPLATE.tokenizer.encode(TEXT).ids), VOCAB, frozenset())
FLOAT32 = 0.01
"""Nats: both servers reckon in float32 on the CPU."""

PAIRS = [
    pytest.param("standin_url", "standin_url", id="stand-in"),
    pytest.param("genuine_url", "genuine_url", id="genuine", marks=pytest.mark.sglang),
    pytest.param("standin_url", "genuine_url", id="stand-in and genuine", marks=pytest.mark.sglang),
]


async def told_by(client: ServerClient) -> Fingerprint:
    """Ask for the fingerprint; every server of this contract tells one."""
    told = await ask_fingerprint(client, IDS, await client.info())
    assert told is not None
    return told


@pytest.mark.parametrize(("one", "other"), PAIRS)
@pytest.mark.timeout(900)
async def test_the_same_weights_are_the_same_model(
    request: pytest.FixtureRequest, one: str, other: str
) -> None:
    """Alone and beside rows, whichever server: 128 values that differ by less than a tenth of the limit."""
    first_url, other_url = str(request.getfixturevalue(one)), str(request.getfixturevalue(other))
    async with ServerClient(first_url, Access()) as first, ServerClient(other_url, Access()) as second:
        kept = await told_by(first)
        beside = [asyncio.ensure_future(second.generate(row, SAMPLING, VOCAB)) for row in rows(3)]
        busy = await told_by(second)
        await asyncio.gather(*beside)
        alone = await told_by(second)
    assert np.unique(kept.values).size > 100
    assert max(difference(kept, busy), difference(kept, alone)) < FLOAT32
    wrong = attrs.evolve(kept, values=kept.values[1:] + kept.values[:1])
    assert compare(wrong, alone) == "other"
