"""What each step does, without Prefect: the one place where tokens, serving and storage meet.

Blocking functions; the steps run them on the run's own threads. Only `open_fleet` and `generate` await.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import attrs
import numpy as np
import orjson

from tasks.fleet.dispatch import Dispatch
from tasks.fleet.ensure import ServerReport
from tasks.fleet.fleet import Fleet
from tasks.fleet.suspicion import Judged
from tasks.grammar.check import check_rows
from tasks.ledger.batch import Batch, Batches
from tasks.ledger.journal import Journal
from tasks.ledger.journal_folder import sweep_journals
from tasks.ledger.noted_servers import ServedModels
from tasks.ledger.receipt import unit_name
from tasks.ledger.server_lock import server_locks
from tasks.prompts.opening import open_sources
from tasks.prompts.plan_batches import extend_plan
from tasks.prompts.planned import name_sources
from tasks.rows.records import CheckedBatch, Completion, Ragged, Request
from tasks.rows.row_id import split_row_id
from tasks.rows.verdicts import CANONICAL, accepted_codes
from tasks.run.batch_rows import BatchLane
from tasks.run.probing import probe_plan
from tasks.run.run import Run
from tasks.sglang.settings import FleetSettings, api_key_of
from tasks.turns.conversations import extends_previous
from tasks.turns.mix import sampling_of
from tasks.turns.next_turn import TurnRules
from tasks.turns.sampling import ResolvedSampling, row_seed
from tasks.turns.turns import BatchTurns, plan_conversations


@attrs.frozen(slots=True, eq=False)
class RenderedBatch:
    """A batch whose first prompts are rendered, with its open journal.

    Args:
        batch: its range and fingerprint.
        turns: its conversations: what follows a finished row.
        journal: its finished rows.
        generation: of the receipt that it will get.
        partials: committed cut rows to be taken up where they stopped.
        cap: ids that may be added to each of them.
        reason: what a later generation is made for.
        opened: set when dispatch has its rows: then it knows whether the window runs dry.
    """

    batch: Batch
    turns: BatchTurns
    journal: Journal
    generation: int = 0
    partials: dict[str, Completion] = attrs.field(factory=dict)
    cap: int = 0
    reason: str = ""
    opened: asyncio.Event = attrs.field(factory=asyncio.Event)

    @property
    def unit(self) -> str:
        """Name of this work: of its lease and its journal."""
        return unit_name(self.batch.index, self.generation)


class Numbered(Protocol):
    """A batch, or a batch again."""

    @property
    def index(self) -> int:
        """Number of the batch in the job."""

    @property
    def generation(self) -> int:
        """Of the receipt that it will get."""

    @property
    def reason(self) -> str:
        """What a later generation is made for."""

    @property
    def name(self) -> str:
        """For people: number, record range."""


def plan(run: Run) -> Batches:
    """Extend the plan by what is new in the sources; return the batches without a receipt."""
    sources = open_sources(run.spec.prompts, run.spec.store, run.credentials)
    run.plan = extend_plan(run.ledger, sources, run.spec, run.resolved_sha256)
    run.sources = sources
    return _pending(run, 0, len(run.plan.batches))


def plan_range(run: Run, start: int, stop: int) -> Batches:
    """Return the planned batches in [start, stop) without a receipt; nothing is added to the plan."""
    open_plan(run)
    assert run.plan is not None
    return _pending(run, start, min(stop, len(run.plan.batches)))


def _pending(run: Run, start: int, stop: int) -> Batches:
    committed = sweep(run)
    assert run.plan is not None
    pending = run.plan.batches.chosen(index for index in range(start, stop) if index not in committed)
    run.progress.batches = len(pending)
    run.progress.records = sum(batch.stop - batch.start for batch in pending)
    return pending


def sweep(run: Run) -> dict[int, int]:
    """Remove what crashes left of committed generations; return the highest one of each committed batch."""
    assert run.plan is not None
    committed = run.ledger.committed()
    sweep_journals(run.journal_root, run.spec.job_id, run.plan.batches, committed)
    run.keeper.sweep(committed)
    return committed


def open_plan(run: Run) -> None:
    """Read the plan as it is, and the sources that it names; nothing is added."""
    run.sources = open_sources(run.spec.prompts, run.spec.store, run.credentials)
    run.plan = run.ledger.plan_of(run.ledger.committed())
    run.sources.seal = (run.spec.job_id, run.resolved_sha256)
    name_sources(run.sources, run.plan)


async def open_fleet(run: Run, say: Callable[[str], None], sharers: int) -> tuple[ServerReport, ...]:
    """Make every server of the job ready and proved; open the window of rows over them.

    Args:
        run: the current run; its fleet and dispatch are set.
        say: takes one line for a person at a time.
        sharers: flow runs that use the servers at once.
    """
    settings = FleetSettings(
        servers=run.spec.servers,
        plan=probe_plan(run.vocabulary, run.grammar, run.sampling, run.spec.model.tokenizer),
        api_key=api_key_of(run.spec.servers),
        in_flight=run.spec.batch.in_flight,
        sharers=sharers,
        log_dir=run.journal_root,
        lock=server_locks(run.spec.store, run.name, run.spec.servers.ready_timeout_seconds, run.credentials),
    )
    models = ServedModels(run.store, run.in_thread, run.spec.servers.allow_models)
    run.fleet = await run.stack.enter_async_context(Fleet(settings, say, models))
    reports = await run.fleet.ensure()
    run.dispatch = await run.stack.enter_async_context(
        Dispatch(run.fleet, run.sampling.payload(), run.vocabulary.size, run.spec.policy.max_attempts)
    )
    return reports


def render(
    run: Run,
    batch: Batch,
    generation: int = 0,
    sampling: ResolvedSampling | None = None,
    reason: str = "",
) -> RenderedBatch:
    """Read the batch's records, open its journal and its conversations.

    Args:
        run: the current run.
        batch: which.
        generation: of the receipt that it will get; each has a journal and a lease of its own.
        sampling: None: the job's.
        reason: what a later generation is made for; a journal that was begun for another one is not used.

    Raises:
        TakenError: another worker has it or has committed it.
    """
    assert run.sources is not None
    assert run.fleet is not None
    records = run.sources.read(batch)
    conversations = plan_conversations(records, run.spec.prompts.turns, run.spec.sampling.samples)
    spec = run.spec
    rules = TurnRules(
        sampling or run.sampling,
        run.fleet.lengths(),
        spec.model.control_tokens,
        spec.tools.match,
        run.mixes,
        spec.sampling.logprobs_share,
    )
    rounds = spec.policy.rounds if spec.policy.on_length == "continue" else 0
    turns = BatchTurns(conversations, run.grammar, rules, rounds)
    journal = run.keeper.open_journal(spec.job_id, batch, generation, reason)
    return RenderedBatch(batch, turns, journal, generation, reason=reason)


def note_verdicts(run: Run, checked: CheckedBatch) -> None:
    """Hold the servers' rows against each other."""
    fleet = run.fleet
    if fleet is None or len(fleet.servers) < 2:
        return

    def judged() -> Iterator[Judged]:
        for completion, verdict, metadata in zip(
            checked.completions, checked.verdicts, checked.metadata, strict=True
        ):
            if completion.sent and (url := completion.facts.get("server")):
                source, _, turn, _ = split_row_id(completion.row_id)
                mix = str(orjson.loads(metadata or "{}").get("mix", "")) if run.mixes else ""
                drawn = sampling_of(run.mixes, {}, mix)
                cap = int(drawn.pop("max_new_tokens", run.sampling.max_new_tokens))
                seed = row_seed(run.sampling.seed, f"compared: {completion.row_id}")
                request = Request(
                    f"compared: {completion.row_id}", completion.input_ids, cap, seed, sampling=drawn
                )
                yield Judged(f"{source}#{turn} {mix}", url, verdict.code in CANONICAL, request)

    def judge(completions: Sequence[Completion]) -> list[bool]:
        inputs = Ragged.from_rows([c.input_ids for c in completions])
        outputs = Ragged.from_rows([c.output_ids for c in completions])
        return [v.code in CANONICAL for v in check_rows(run.grammar, inputs, outputs, completions)]

    fleet.suspicions.add(judged(), judge, run.sampling.payload(), run.vocabulary.size)


def close(run: Run, rendered: RenderedBatch) -> None:
    """Close the journal of a batch that is not committed, and let go of it."""
    if not rendered.journal.closed:  # else it is committed
        run.keeper.close_journal(rendered.unit, rendered.journal)


async def generate(run: Run, rendered: RenderedBatch) -> int:
    """Make every row of the batch that its journal does not hold; return how many it held."""
    assert run.dispatch is not None
    resumed = len(rendered.journal.done)
    lane = BatchLane(rendered.journal, rendered.turns, run.progress, run.renderers)
    works = await run.in_thread(lane.opening)
    steps = await run.renderers.run(rendered.turns.rules, works)
    await run.in_thread(lane.open, works, steps, rendered.partials, rendered.cap)
    run.progress.refused(len(rendered.journal.done) - resumed)
    rendered.opened.set()
    await run.dispatch.run(lane)
    await run.in_thread(rendered.journal.flush)
    return resumed


def check(run: Run, rendered: RenderedBatch) -> CheckedBatch:
    """Read the batch's rows back from the journal, in source order, and give each its verdict."""
    turns = rendered.turns
    completions = tuple(rendered.journal.completions(turns.row_ids))
    inputs = Ragged.from_rows([c.input_ids for c in completions])
    outputs = Ragged.from_rows([c.output_ids for c in completions])
    verdicts = check_rows(run.grammar, inputs, outputs, completions)
    good = accepted_codes(run.spec.policy.accept, run.spec.policy.on_length)
    return CheckedBatch(
        batch=rendered.batch.index,
        row_ids=turns.row_ids,
        inputs=inputs,
        outputs=outputs,
        verdicts=verdicts,
        accepted=np.fromiter((v.code in good for v in verdicts), np.bool_, len(verdicts)),
        completions=completions,
        turns=turns.turn_numbers,
        samples=turns.sample_numbers,
        metadata=turns.metadata,
        extends=extends_previous(turns.row_ids, inputs, outputs),
    )
