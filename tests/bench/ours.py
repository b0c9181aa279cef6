"""rawseq's own hot path without Prefect and without the shard: rendered rows → fleet → journal → verdicts."""

import asyncio
import tempfile
from collections import deque
from pathlib import Path

import numpy as np

from tasks.fleet.dispatch import Dispatch
from tasks.fleet.fleet import Fleet
from tasks.fleet.quarantine import Lane
from tasks.grammar.check import check_rows
from tasks.grammar.grammar import Grammar, discover_grammar
from tasks.job.spec import SamplingSpec, ServersSpec
from tasks.ledger.batch import Batch
from tasks.ledger.journal import Journal
from tasks.rows.records import Completion, Ragged, Request
from tasks.run.batch_rows import BatchLane
from tasks.run.probing import probe_plan
from tasks.run.processes import Knowledge
from tasks.run.progress import Progress
from tasks.run.rendering import Renderers
from tasks.sglang.settings import FleetSettings
from tasks.tokenizer.vocabulary import load_vocabulary
from tasks.turns.sampling import resolve_sampling
from tests.bench.load import MODEL, Load, batch_turns
from tests.support.talk import Talk

BATCH_ROWS = 2000
"""Rows of a lane: the default batch."""


class BareLane:
    """A lane that keeps ids and does nothing else: dispatch and the acceptance rules alone."""

    def __init__(self, requests: list[Request]) -> None:
        self._ready = deque(requests)
        self._open = len(requests)
        self.outputs: list[np.ndarray] = []

    @property
    def done(self) -> bool:
        """Whether every row came back."""
        return self._open == 0

    def take(self) -> Request | None:
        """Give the next request."""
        return self._ready.popleft() if self._ready else None

    def finished(self, completion: Completion) -> None:
        """Keep the ids."""
        self.outputs.append(completion.output_ids)
        self._open -= 1

    def attempt_failed(self, request: Request, outcome: str, alone: bool) -> None:
        """Fail: a bench has no failing server."""
        raise AssertionError(f"{request.row_id}: {outcome}")

    def attempts(self, row_id: str) -> int:
        """Return 0."""
        return 0


class Hot:
    """The rows of one measurement, rendered before the clock starts.

    Args:
        load: what the server does.
        rows: how many.
        stages: `dispatch`, `journal` or `whole`: how much of the path is on.
        folder: for journals.
    """

    def __init__(self, load: Load, rows: int, stages: str, folder: Path) -> None:
        self.stages = stages
        vocabulary = load_vocabulary(MODEL)
        self.grammar: Grammar = discover_grammar(vocabulary)
        self.sampling = resolve_sampling(SamplingSpec(max_new_tokens=1 << 16), vocabulary, self.grammar)
        self.plan = probe_plan(vocabulary, self.grammar, self.sampling, MODEL.tokenizer)
        self.size = vocabulary.size
        sizes = [min(BATCH_ROWS, rows - first) for first in range(0, rows, BATCH_ROWS)]
        self.turns = [batch_turns(load, size, i * BATCH_ROWS) for i, size in enumerate(sizes)]
        self.journals = [self._journal(folder, i) for i in range(len(sizes))] if stages != "dispatch" else []
        knowledge = Knowledge(MODEL, (), vocabulary.describe())
        self.renderers = Renderers(vocabulary, self.grammar, knowledge, 0)  # these rows have no next turn
        self.lanes = [self._lane(i, turns) for i, turns in enumerate(self.turns)]
        self.accepted = 0

    @staticmethod
    def _journal(folder: Path, index: int) -> Journal:
        batch = Batch(index, 0, 1, f"{index:064x}", ())
        return Journal.open(folder / str(index), "bench", batch, "bench")

    def _lane(self, index: int, turns: Talk) -> Lane:
        if self.stages == "dispatch":
            return BareLane(turns.open({})[0])
        lane = BatchLane(self.journals[index], turns, Progress(), self.renderers)
        works = lane.opening()
        lane.open(works, turns.steps(works))
        return lane

    def fleet(self, url: str, window: int | None) -> Fleet:
        """Return the fleet over one stub, or several separated by commas."""
        servers = ServersSpec(urls=url.split(","))
        return Fleet(FleetSettings(servers=servers, plan=self.plan, in_flight=window), lambda line: None)

    async def run(self, fleet: Fleet) -> None:
        """Make every row over an ensured fleet."""
        async with (
            Dispatch(fleet, self.sampling.payload(), self.size, 3) as dispatch,
            asyncio.TaskGroup() as all_,
        ):
            for index, lane in enumerate(self.lanes):
                await dispatch.hungry()
                all_.create_task(self._batch(dispatch, index, lane))
                await asyncio.sleep(0)

    async def _batch(self, dispatch: Dispatch, index: int, lane: Lane) -> None:
        await dispatch.run(lane)
        if self.stages == "whole":
            accepted = await asyncio.to_thread(self._check, index)
            self.accepted += accepted

    def _check(self, index: int) -> int:
        """Read a batch back from its journal and give each row its verdict, as `check_tokens` does."""
        self.journals[index].flush()
        completions = list(self.journals[index].completions(self.turns[index].row_ids))
        inputs = Ragged.from_rows([c.input_ids for c in completions])
        outputs = Ragged.from_rows([c.output_ids for c in completions])
        verdicts = check_rows(self.grammar, inputs, outputs, completions)
        return sum(verdict.code == "complete" for verdict in verdicts)

    def close(self) -> None:
        """Let go of the journals."""
        for journal in self.journals:
            journal.close()


def journal_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder on the disk that real journals would be on."""
    return tempfile.TemporaryDirectory(prefix="rawseq-bench-")
