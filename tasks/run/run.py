"""One run of a job: what its steps share, opened once and reached through the flow run's context.

The fleet and the clients cannot be task arguments (Prefect would hash and persist them), so the steps find
them here. `open_run` owns everything that must be closed.
"""

import asyncio
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import attrs
import orjson

from tasks.errors import SurroundingsError
from tasks.fleet.dispatch import Dispatch
from tasks.fleet.fleet import Fleet
from tasks.grammar.discover import turn_ends
from tasks.grammar.grammar import Grammar, discover_grammar
from tasks.job.spec import JobSpec
from tasks.ledger.keeper import Keeper
from tasks.ledger.ledger import Ledger, Plan
from tasks.prompts.sources import Sources
from tasks.report.publish import Published
from tasks.report.summary import Summary
from tasks.run.collector import seldom_collected
from tasks.run.limits import ByteGate
from tasks.run.processes import Knowledge
from tasks.run.progress import Progress
from tasks.run.rendering import Renderers
from tasks.run.tables import BatchBook
from tasks.store.contract import ObjectStore
from tasks.store.findings import StoreProbe
from tasks.store.probe import prepare_store
from tasks.tokenizer.vocabulary import Vocabulary, load_vocabulary
from tasks.turns.mix import Mix, read_mix
from tasks.turns.sampling import ResolvedSampling, resolve_sampling

P = ParamSpec("P")
T = TypeVar("T")

STORE_THREADS = 8
"""Blocking store calls, encodes and final checks at once; `asyncio.to_thread` would give 6 on two cores."""


FINISHING_BYTES = 256 * 2**20
"""Journal bytes of the batches that are checked, encoded and uploaded at once; in memory they take about
six times that (`tests/tasks/store/test_memory.py`)."""


def _tell_nobody(line: str) -> None:
    del line


@attrs.define(slots=True, eq=False)
class Run:
    """What the steps of one flow run share.

    Args:
        spec: the job.
        vocabulary: the job's tokenizer.
        grammar: the job's token grammar.
        sampling: every sampling field that is sent.
        mixes: ways of drawing rows, chosen by hash; empty: one way.
        resolved: JSON-able account of the three above; part of `job.json`.
        store: the job's own prefix.
        store_probe: what the store honours, and the modes that follow.
        ledger: what is planned and done.
        keeper: signs of life, leases, journal copies in the store.
        journal_root: local folder of this job's journals.
        name: unique name of this run: part of its journals' names.
        progress: counters of this run, for the bar and the artifact.
        book: open and failed batches of this run, for the table.
        pool: threads for blocking work.
        credentials: S3 credentials of a Prefect block; None: the AWS chain.
        renderers: where prompts are rendered.
        stack: what closes with the run: dispatch, fleet, store.
        logs: pages with the logs of batches that other flow runs have failed to make, by number.
        finishing: bounds what finished batches take in memory until they are committed.
        tell: takes lines for the person at the terminal, beside the log.
    """

    spec: JobSpec
    vocabulary: Vocabulary
    grammar: Grammar
    sampling: ResolvedSampling
    mixes: tuple[Mix, ...]
    resolved: dict[str, Any]
    store: ObjectStore
    store_probe: StoreProbe
    ledger: Ledger
    keeper: Keeper
    journal_root: Path
    name: str
    progress: Progress
    pool: ThreadPoolExecutor
    renderers: Renderers
    stack: AsyncExitStack
    credentials: Mapping[str, str] | None = attrs.field(default=None, repr=False)
    plan: Plan | None = None
    sources: Sources | None = None
    fleet: Fleet | None = None
    dispatch: Dispatch | None = None
    summary: Summary | None = None
    published: Published | None = None
    book: BatchBook = attrs.field(factory=BatchBook)
    logs: dict[int, str] = attrs.field(factory=dict)
    finishing: ByteGate = attrs.field(factory=lambda: ByteGate(FINISHING_BYTES))
    tell: Callable[[str], None] = _tell_nobody

    async def in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking call on this run's own threads; the event loop goes on.

        A thread cannot be stopped: when the caller is cancelled, the cancellation waits for the call to end,
        so that nothing is closed under it.
        """
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self.pool, lambda: call(*args, **kwargs))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait((work,))
            if not work.cancelled():
                work.exception()  # the cancellation is what counts now
            raise

    @property
    def resolved_sha256(self) -> str:
        """Hex sha256 of `resolved` as canonical JSON: two runs with equal ones make the same prompts."""
        return hashlib.sha256(orjson.dumps(self.resolved, option=orjson.OPT_SORT_KEYS)).hexdigest()


_CURRENT: ContextVar[Run] = ContextVar("rawseq_run")
OBSERVER: ContextVar[Callable[[Run], None] | None] = ContextVar("rawseq_observer", default=None)
"""Called with the run when it opens: how the command line follows a flow that it started."""


def current_run() -> Run:
    """Return the run that this step belongs to."""
    return _CURRENT.get()


@asynccontextmanager
async def open_run(
    spec: JobSpec, name: str, credentials: Mapping[str, str] | None = None
) -> AsyncIterator[Run]:
    """Resolve the job, open its store and ledger, and make them current for the steps inside.

    Args:
        spec: the job.
        name: unique name of this run.
        credentials: S3 credentials from a Prefect block; None: the AWS chain.

    Raises:
        TokenizerError: when the tokenizer cannot be loaded or is provably the wrong one.
        IdentityError: when the store's `job.json` resolves differently.
        SurroundingsError: when the store cannot be reached.
    """
    async with AsyncExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(STORE_THREADS, thread_name_prefix="rawseq-store"))
        loop = asyncio.get_running_loop()
        run = await loop.run_in_executor(pool, _resolve, spec, name, credentials, pool, stack)
        await run.in_thread(run.keeper.__enter__)
        stack.push_async_callback(run.in_thread, run.keeper.__exit__, None, None, None)
        await stack.enter_async_context(run.renderers)
        stack.callback(_CURRENT.reset, _CURRENT.set(run))
        stack.enter_context(seldom_collected())
        observer = OBSERVER.get()
        if observer is not None:
            observer(run)
        yield run


def _resolve(
    spec: JobSpec,
    name: str,
    credentials: Mapping[str, str] | None,
    pool: ThreadPoolExecutor,
    stack: AsyncExitStack,
) -> Run:
    vocabulary = load_vocabulary(spec.model)
    mixes = read_mix(spec.sampling.mix)
    grammar = discover_grammar(vocabulary, [mix.template_args for mix in mixes])
    sampling = resolve_sampling(spec.sampling, vocabulary, grammar)
    resolved = _account(spec, vocabulary, grammar, sampling)
    journals = _journal_root(spec)
    store, found = prepare_store(spec.store, spec.job_id, credentials)
    stack.callback(store.close)
    ledger = Ledger(store, spec.job_id)
    ledger.open_job(spec, resolved)
    keeper = Keeper(store, journals, name, spec.batch.journal_upload_seconds, spec.batch.lease_seconds)
    return Run(
        spec=spec,
        vocabulary=vocabulary,
        grammar=grammar,
        sampling=sampling,
        mixes=mixes,
        resolved=resolved,
        store=store,
        store_probe=found,
        ledger=ledger,
        keeper=keeper,
        journal_root=journals,
        name=name,
        progress=Progress(),
        pool=pool,
        renderers=_renderers(spec, vocabulary, grammar),
        stack=stack,
        credentials=credentials,
    )


def _renderers(spec: JobSpec, vocabulary: Vocabulary, grammar: Grammar) -> Renderers:
    knowledge = Knowledge(spec.model, tuple(spec.sampling.mix), vocabulary.describe())
    return Renderers(vocabulary, grammar, knowledge, spec.batch.render_processes)


def _account(
    spec: JobSpec, vocabulary: Vocabulary, grammar: Grammar, sampling: ResolvedSampling
) -> dict[str, Any]:
    """Return what the job's spec strings resolve to: the `resolved` of `job.json`."""
    return {
        "tokenizer": vocabulary.describe(),
        "control_ids": vocabulary.control_ids,
        "end_ids": sorted(turn_ends(vocabulary)),
        "grammar": grammar.describe(),
        "sampling": sampling.payload(),
        "template_args": vocabulary.template_args,
        "mix": spec.sampling.mix,
    }


def _journal_root(spec: JobSpec) -> Path:
    """Return the folder of the job's journals, made and seen to be writable.

    Raises:
        SurroundingsError: it cannot be made, or not be written.
    """
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    parent = Path(spec.batch.journal_dir or f"{state}/rawseq").expanduser()
    folder = parent / spec.job_id
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise SurroundingsError(
            f"batch.journal_dir: expected a folder that can be written, got {parent}: {error.strerror}"
        ) from None
