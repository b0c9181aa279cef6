"""Batches again: failed ones, named ones, damaged ones, or those with rejected rows of some code.

A batch without a receipt is made as in any run. A committed batch gets a new receipt generation: its accepted
rows, and the rejected ones that nobody asked for again, are copied verbatim; only the named rows are made. Of
a named batch whose files were lost or changed, only what cannot be read back anywhere is made.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

import attrs
from pydantic import BaseModel, ConfigDict

from tasks.dataset.damage import damaged_files, intact_rows
from tasks.errors import JobError
from tasks.ledger.ledger import Batch, Receipt
from tasks.rows.records import Completion
from tasks.rows.row_id import split_row_id
from tasks.rows.verdicts import CUT, Code, accepted_codes
from tasks.run.batch import Numbered, RenderedBatch, open_plan, render, sweep
from tasks.run.run import Run
from tasks.turns.sampling import row_seed

Unit = TypeVar("Unit", bound=Numbered)


@attrs.frozen(slots=True)
class Retry:
    """One batch to be made again.

    Args:
        batch: which.
        generation: of the receipt that it will get.
        codes: rows of these codes are made again; the others are copied.
        more: ids that a cut row may grow by from where it stopped; 0: rows are made from their prompts.
        damage: what is wrong with files of the generation before, by kind.
        server: only rows that this server made are made again, of all codes where `codes` is empty.
        rows: how many rows that are, 0 without a server.
    """

    batch: Batch
    generation: int
    codes: frozenset[str]
    more: int = 0
    damage: Mapping[str, str] = MappingProxyType({})
    server: str = ""
    rows: int = 0

    def takes(self, code: str, row: Completion) -> bool:
        """Whether a row of the generation before is made again."""
        if self.server:
            return row.facts.get("server") == self.server and (not self.codes or code in self.codes)
        return code in self.codes

    @property
    def reason(self) -> str:
        """What it is made for, as the receipt says; its journal is not used by a retry for another reason."""
        parts = [f"{kind} {state}" for kind, state in sorted(self.damage.items())]
        if self.codes:
            parts.append(f"again: {', '.join(sorted(self.codes))}")
        if self.server:
            parts.append(f"made by {self.server}")
        if self.more:
            parts.append(f"{self.more} ids more")
        return "; ".join(parts)

    @property
    def index(self) -> int:
        """Number of the batch in the job."""
        return self.batch.index

    @property
    def name(self) -> str:
        """Name for people: number, record range, generation."""
        return f"{self.batch.name} g{self.generation}"


class Again(BaseModel):
    """What a flow run over a range makes again: as its parameter, so that another one may take its place."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    generations: dict[int, int]
    """Receipt generation that each batch is to get, by its number."""
    rejected: list[str] = []
    """Verdict codes of rejected rows to make again; empty: all."""
    look: bool = False
    """Whether the batches' files are read, and damage is reason enough."""
    more: int = 0
    """Ids that cut rows may grow by; 0: rows are made from their prompts."""
    server: str = ""
    """Only rows that this server made; "": of all."""

    def within(self, start: int, stop: int) -> "Again":
        """Return the part of it over batches [start, stop)."""
        part = {number: made for number, made in self.generations.items() if start <= number < stop}
        return self.model_copy(update={"generations": part})


def plan_retries(
    run: Run, numbers: Collection[int], codes: Collection[str], server: str = ""
) -> tuple[Retry, ...]:
    """Return what to make again; plans no new records.

    Args:
        run: the current run; its plan and sources are set.
        numbers: batches to look at; empty: all.
        codes: verdict codes of rejected rows to make again; empty: batches without a receipt, and named
            committed batches: what their damaged files have lost, or else every rejected row.
        server: URL of the server whose rows are made again, accepted ones too; "": of all.

    Raises:
        JobError: a batch that is not planned, a code that is none or always accepted, a server that made no
            row here.
    """
    wanted = _codes(run, codes)
    open_plan(run)
    assert run.plan is not None
    last = len(run.plan.batches) - 1
    unknown = sorted(number for number in set(numbers) if not 0 <= number <= last)
    if unknown:
        raise JobError(f"--batches: expected numbers within 0-{last}, got {', '.join(map(str, unknown))}")
    committed = sweep(run)
    chosen = [batch for batch in run.plan.batches if not numbers or batch.index in numbers]
    if server:
        return _counted(run, _made_by(run, chosen, committed, wanted, server))
    retries: list[Retry | None] = []
    for batch in chosen:
        if batch.index not in committed:
            retries.append(Retry(batch, 0, frozenset()))
        elif wanted or numbers:
            receipt = run.ledger.receipt(batch.index, committed[batch.index])
            retries.append(_again(run, batch, receipt, wanted, look=bool(numbers)))
    return _counted(run, [retry for retry in retries if retry is not None])


def _made_by(
    run: Run, batches: Iterable[Batch], committed: Mapping[int, int], codes: frozenset[str], server: str
) -> list[Retry]:
    """Return the committed batches that hold rows of a server."""
    retries, known = [], set()
    for batch in batches:
        if batch.index in committed:
            receipt = run.ledger.receipt(batch.index, committed[batch.index])
            retry = Retry(batch, receipt.generation + 1, codes, server=server.rstrip("/"))
            rows = intact_rows(run.ledger, run.store, receipt, ())
            known |= {str(row.facts["server"]) for _, row in rows if row.facts.get("server")}
            if count := sum(retry.takes(code, row) for code, row in rows):
                retries.append(attrs.evolve(retry, rows=count))
    if not retries and server.rstrip("/") not in known:
        raise JobError(
            f"--server: expected one that made rows here ({', '.join(sorted(known))}), got {server}"
        )
    return retries


def _again(run: Run, batch: Batch, receipt: Receipt, wanted: frozenset[str], *, look: bool) -> Retry | None:
    """Return how a committed batch is made again; None when there is nothing to make.

    `look` reads its files, and takes a damaged one as reason enough.
    """
    damage = damaged_files(run.store, receipt) if look else {}
    codes = frozenset(map(str, _rejected_codes(run, receipt)))
    again = codes & wanted if wanted or damage else codes
    return Retry(batch, receipt.generation + 1, again, damage=damage) if again or damage else None


def _counted(run: Run, retries: list[Retry]) -> tuple[Retry, ...]:
    run.progress.batches = len(retries)
    run.progress.records = sum(retry.batch.stop - retry.batch.start for retry in retries)
    return tuple(retries)


def plan_continuations(run: Run, more: int) -> tuple[Retry, ...]:
    """Return the batches with cut rows, to be taken up where they stopped; plans no new records.

    Where some were continued by so many ids already and others were not, that was a run that did not come to
    its end: the others follow. Where all were, all are continued once more.

    Args:
        run: the current run; its plan and sources are set.
        more: ids that each cut row may grow by.
    """
    open_plan(run)
    assert run.plan is not None
    committed = sweep(run)
    cut = frozenset(map(str, CUT))
    retries, done = [], set()
    for batch in run.plan.batches:
        if batch.index in committed:
            receipt = run.ledger.receipt(batch.index, committed[batch.index])
            if cut & set(receipt.rows["by_verdict"]):
                retries.append(Retry(batch, receipt.generation + 1, cut, more))
                done |= {batch.index} if receipt.reason == retries[-1].reason else set()
    if len(done) < len(retries):
        retries = [retry for retry in retries if retry.index not in done]
    return _counted(run, retries)


def plan_again(run: Run, again: Again) -> tuple[Retry, ...]:
    """Return what of it is still to be made; plans no new records and looks at no other batch."""
    open_plan(run)
    assert run.plan is not None
    committed = sweep(run)
    retries: list[Retry | None] = []
    for number, generation in sorted(again.generations.items()):
        batch = run.plan.batches[number]
        if committed.get(number, -1) >= generation:
            continue
        if generation == 0:
            retries.append(Retry(batch, 0, frozenset()))
        elif again.server:
            before, wanted = {number: generation - 1}, frozenset(again.rejected)
            retries += _made_by(run, [batch], before, wanted, again.server)
        elif again.more:
            retries.append(Retry(batch, generation, frozenset(map(str, CUT)), again.more))
        else:
            receipt, codes = run.ledger.receipt(number, generation - 1), _codes(run, again.rejected)
            retries.append(_again(run, batch, receipt, codes, look=again.look))
    return _counted(run, [retry for retry in retries if retry is not None])


def rows_made(before: Receipt, after: Receipt, retry: Retry) -> int:
    """Return how many rows of `after` were made, not copied; where files were lost, how many at most."""
    if retry.damage:
        return int(after.rows["total"])
    if retry.server:
        return retry.rows
    old, new, unreached = before.rows["by_verdict"], after.rows["by_verdict"], str(Code.UNREACHED)
    reached = int(old.get(unreached, 0)) - int(new.get(unreached, 0))
    again = sum(int(old.get(code, 0)) for code in retry.codes - {unreached})
    return again + max(0, reached)


def settled(run: Run, units: Sequence[Unit]) -> tuple[tuple[Unit, ...], list[tuple[int, str]]]:
    """Return the units without a receipt, and (batch, error) of those made by others for another reason."""
    committed = run.ledger.committed() if units else {}
    left = tuple(unit for unit in units if committed.get(unit.index, -1) < unit.generation)
    overtaken = []
    for unit in units:
        if unit not in left and unit.generation:
            made = run.ledger.receipt(unit.index, unit.generation)
            if made.reason != unit.reason:
                text = f"expected to make it for {unit.reason!r}, got one that is made for {made.reason!r}"
                overtaken.append((unit.index, f"{made.key}: {text} meanwhile: run the same command again"))
    return left, overtaken


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
    cap = run.sampling.max_new_tokens + retry.more  # also for the turns that a cut had left unreached
    sampling = attrs.evolve(run.sampling, seed=_seed(run, retry), max_new_tokens=cap)
    rendered = render(run, retry.batch, retry.generation, sampling, retry.reason)
    try:
        receipt = run.ledger.receipt(retry.batch.index, retry.generation - 1)
        rows = intact_rows(run.ledger, run.store, receipt, retry.damage)
        for completion in kept_rows(rows, retry.takes, rendered.turns.row_ids):
            if completion.row_id not in rendered.journal.done:  # a kill may have left some of them uncopied
                rendered.journal.append(completion)
        rendered.journal.flush()
    except BaseException:
        run.keeper.close_journal(rendered.unit, rendered.journal)
        raise
    if not retry.more:
        return rendered
    partials = {row.row_id: row for code, row in rows if code in retry.codes}
    return attrs.evolve(rendered, partials=partials, cap=retry.more)


def _seed(run: Run, retry: Retry) -> int:
    """Return the seed of the rows that are made: a new one, since the same noise would give the same rows.

    What was lost is what the same noise should give again.
    """
    generation = retry.generation if retry.codes else retry.generation - 1
    return row_seed(run.sampling.seed, f"g{generation}") if generation else run.sampling.seed


def kept_rows(
    rows: Sequence[tuple[str, Completion]],
    takes: Callable[[str, Completion], bool],
    row_ids: Iterable[str] = (),
) -> list[Completion]:
    """Return the rows that stay: all but those to be made again and the turns that follow one.

    Args:
        rows: (verdict code, completion) of a batch, as far as they can be read.
        takes: whether one of them is made again.
        row_ids: of the whole batch: turns that follow a row that cannot be read are made again, too.
    """
    stays = {completion.row_id: not takes(code, completion) for code, completion in rows}
    first: dict[tuple[str, str, int], int] = {}
    for row_id in {*stays, *row_ids}:
        source, record, turn, sample = split_row_id(row_id)
        if not stays.get(row_id, False):
            place = source, record, sample
            first[place] = min(turn, first.get(place, turn))
    kept = []
    for _, completion in rows:
        source, record, turn, sample = split_row_id(completion.row_id)
        if turn < first.get((source, record, sample), turn + 1):
            kept.append(completion)
    return kept
