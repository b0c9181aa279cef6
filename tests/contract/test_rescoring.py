"""Re-scoring on both servers: rows that either makes are its own to the other too; changed ones are not."""

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import pytest

from tasks.audit.report import Check
from tasks.audit.rescoring import judge, looked_at
from tasks.audit.sample import SampledRow
from tasks.audit.scorer import score_row
from tasks.rows.records import Request
from tasks.sglang.client import Access, ServerClient
from tests.support.embedded import VOCAB, prompt

TOP = 20
FLOAT32 = 0.01
"""Nats: both servers reckon in float32 on the CPU."""

SAMPLINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.6, "top_p": 0.95},
    {"temperature": 1.3, "top_k": 20, "min_p": 0.05},
)

PAIRS = [
    pytest.param("standin_url", "standin_url", id="stand-in"),
    pytest.param("genuine_url", "genuine_url", id="genuine", marks=pytest.mark.sglang),
    pytest.param("standin_url", "genuine_url", id="stand-in's rows on genuine", marks=pytest.mark.sglang),
    pytest.param("genuine_url", "standin_url", id="genuine's rows on stand-in", marks=pytest.mark.sglang),
]


async def row_of(client: ServerClient, number: int) -> SampledRow:
    """Generate a row, drawn as `SAMPLINGS[number]` says, with kept log probabilities."""
    ask = Request(f"q:{number}#t0~s0", prompt("What is 7+5?"), 24, seed=number, logprobs=True)
    done = await client.generate(ask, SAMPLINGS[number], VOCAB)
    ids = np.concatenate([done.input_ids, done.output_ids])
    kept = np.array(done.facts["logprobs"], np.float64)
    return SampledRow("shard", number, ask.row_id, ids, done.input_ids.size, "", kept)


async def flagged(client: ServerClient, rows: Sequence[SampledRow]) -> set[int | None]:
    """Score rows and judge them; return the numbers of those that are not as they should be."""
    check = Check("rescored")
    scored = [
        (row, await score_row(client, Request(row.row_id, row.ids, 1, seed=0), row.prompt_length, TOP, VOCAB))
        for row in rows
    ]
    drawn = [SAMPLINGS[row.row] for row in rows]
    judge(check, scored, drawn, VOCAB, FLOAT32)
    assert looked_at(rows, drawn, 9).held == sum(row.kept is not None for row in rows)
    return {problem.row for problem in check.problems}


@pytest.mark.parametrize(("maker", "judge_"), PAIRS)
@pytest.mark.timeout(900)
async def test_rows_are_told_from_changed_ones(
    request: pytest.FixtureRequest, maker: str, judge_: str
) -> None:
    """At every temperature: what was generated passes; with one id exchanged it does not."""
    made, asked = str(request.getfixturevalue(maker)), str(request.getfixturevalue(judge_))
    async with ServerClient(made, Access()) as one, ServerClient(asked, Access()) as other:
        rows = [await row_of(one, number) for number in range(len(SAMPLINGS))]
        assert await flagged(other, rows) == set()
        for row in rows:
            row.ids[row.prompt_length + 3] = 1200
        assert await flagged(other, rows) == {0, 1, 2, 3}
        assert await flagged(other, [attrs.evolve(row, kept=None) for row in rows]) >= {0, 2, 3}
