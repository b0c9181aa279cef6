"""Batches again: failed ones, named ones, or those with rejected rows of some code.

A batch without a receipt is made as in any run. A committed batch gets a new receipt generation: its accepted
rows, and the rejected ones that nobody asked for again, are copied verbatim; only the named rows are made.
"""

import hashlib
from collections.abc import Collection, Iterator, Sequence

import attrs

from tasks.batches import RenderedBatch, open_plan, render
from tasks.errors import JobError
from tasks.records import Completion
from tasks.run import Run
from tasks.storage.ledger import Batch, Receipt
from tasks.storage.shard_reader import decode_provenance, decode_rejected, decode_shard
from tasks.tokens.rowid import split_row_id
from tasks.tokens.sampling import row_seed
from tasks.verdicts import CUT, Code, accepted_codes


@attrs.frozen(slots=True)
class Retry:
    """One batch to be made again.

    Args:
        batch: which.
        generation: of the receipt that it will get.
        codes: rows of these codes are made again; the others are copied.
        more: ids that a cut row may grow by from where it stopped; 0: rows are made from their prompts.
    """

    batch: Batch
    generation: int
    codes: frozenset[str]
    more: int = 0

    @property
    def purpose(self) -> str:
        """Short hash of what is asked: another retry of the batch never goes on with this one's journal."""
        return hashlib.sha256(f"{sorted(self.codes)} {self.more}".encode()).hexdigest()[:12]

    @property
    def index(self) -> int:
        """Number of the batch in the job."""
        return self.batch.index

    @property
    def name(self) -> str:
        """Name for people: number, record range, generation."""
        return f"{self.batch.name} g{self.generation}"


def plan_retries(run: Run, numbers: Collection[int], codes: Collection[str]) -> tuple[Retry, ...]:
    """Return what to make again; plans no new records.

    Args:
        run: the current run; its plan and sources are set.
        numbers: batches to look at; empty: all.
        codes: verdict codes of rejected rows to make again; empty: batches without a receipt, and in named
            committed batches every rejected row.

    Raises:
        JobError: a batch that is not planned, or a code that is none or always accepted.
    """
    wanted = _codes(run, codes)
    open_plan(run)
    assert run.plan is not None
    unknown = sorted(set(numbers) - {batch.index for batch in run.plan.batches})
    if unknown:
        last = len(run.plan.batches) - 1
        raise JobError(f"--batches: expected numbers within 0-{last}, got {', '.join(map(str, unknown))}")
    named = [batch for batch in run.plan.batches if not numbers or batch.index in numbers]
    committed = run.ledger.committed()
    retries = []
    for batch in named:
        if batch.index not in committed:
            retries.append(Retry(batch, 0, frozenset()))
        elif wanted or numbers:
            receipt = run.ledger.receipt(batch.index, committed[batch.index])
            again = _rejected_codes(run, receipt) & (wanted or frozenset(Code))
            if again:
                retries.append(Retry(batch, receipt.generation + 1, frozenset(map(str, again))))
    run.progress.batches = len(retries)
    run.progress.records = sum(retry.batch.stop - retry.batch.start for retry in retries)
    return tuple(retries)


def plan_continuations(run: Run, more: int) -> tuple[Retry, ...]:
    """Return the batches with cut rows, to be taken up where they stopped; plans no new records.

    Args:
        run: the current run; its plan and sources are set.
        more: ids that each cut row may grow by.
    """
    open_plan(run)
    assert run.plan is not None
    committed = run.ledger.committed()
    cut = frozenset(map(str, CUT))
    retries = []
    for batch in run.plan.batches:
        if batch.index in committed:
            receipt = run.ledger.receipt(batch.index, committed[batch.index])
            if cut & set(receipt.rows["by_verdict"]):
                retries.append(Retry(batch, receipt.generation + 1, cut, more))
    run.progress.batches = len(retries)
    run.progress.records = sum(retry.batch.stop - retry.batch.start for retry in retries)
    return tuple(retries)


def _codes(run: Run, codes: Collection[str]) -> frozenset[str]:
    known = {str(code) for code in Code}
    wrong = sorted(set(codes) - known)
    if wrong:
        raise JobError(f"--rejected: expected verdict codes, got {', '.join(wrong)}; known: {sorted(known)}")
    good = accepted_codes(run.spec.policy.accept, run.spec.policy.on_length)
    accepted = sorted(set(codes) & set(map(str, good)))
    if accepted:
        raise JobError(f"--rejected: {', '.join(accepted)} is accepted by this job's policy, never rejected")
    return frozenset(codes)


def _rejected_codes(run: Run, receipt: Receipt) -> frozenset[str]:
    good = accepted_codes(run.spec.policy.accept, run.spec.policy.on_length)
    return frozenset(receipt.rows["by_verdict"]) - set(map(str, good))


def render_again(run: Run, retry: Retry) -> RenderedBatch:
    """Open the batch like a new one, with the rows that stay already in its journal."""
    if retry.generation == 0:
        return render(run, retry.batch)
    seed = row_seed(run.sampling.seed, f"g{retry.generation}")  # the same noise would give the same rows
    cap = run.sampling.max_new_tokens + retry.more  # also for the turns that a cut had left unreached
    sampling = attrs.evolve(run.sampling, seed=seed, max_new_tokens=cap)
    rendered = render(run, retry.batch, retry.generation, sampling, purpose=retry.purpose)
    try:
        receipt = run.ledger.receipt(retry.batch.index, retry.generation - 1)
        rows = list(_stored_rows(run, receipt))
        for completion in kept_rows(rows, retry.codes):
            if completion.row_id not in rendered.journal.done:  # a kill may have left some of them uncopied
                rendered.journal.append(completion)
        rendered.journal.flush()
    except BaseException:
        rendered.journal.close()
        raise
    if not retry.more:
        return rendered
    partials = {row.row_id: row for code, row in rows if code in retry.codes}
    return attrs.evolve(rendered, partials=partials, cap=retry.more)


def _stored_rows(run: Run, receipt: Receipt) -> Iterator[tuple[str, Completion]]:
    facts = {}
    for row in decode_provenance(run.store.get(receipt.provenance.key), receipt.provenance.key):
        rest = row.pop("facts")
        del row["accepted"]
        facts[row.pop("row_id")] = rest | row
    for entry, decode in ((receipt.shard, decode_shard), (receipt.rejected, decode_rejected)):
        if entry is not None:
            rows = decode(run.store.get(entry.key), entry.key)
            for index, row_id in enumerate(rows.row_ids):
                yield rows.verdicts[index], rows.completion(index, facts[row_id])


def kept_rows(rows: Sequence[tuple[str, Completion]], codes: Collection[str]) -> list[Completion]:
    """Return the rows that stay: all but those of the given codes and the turns that follow one.

    Args:
        rows: (verdict code, completion) of a whole batch.
        codes: of the rows to make again.
    """
    first: dict[tuple[str, str, int], int] = {}
    for code, completion in rows:
        source, record, turn, sample = split_row_id(completion.row_id)
        if code in codes:
            place = source, record, sample
            first[place] = min(turn, first.get(place, turn))
    kept = []
    for _, completion in rows:
        source, record, turn, sample = split_row_id(completion.row_id)
        if turn < first.get((source, record, sample), turn + 1):
            kept.append(completion)
    return kept
