"""A sample of a dataset's rows sent back to a server: does the model think that these ids are its own?

Prefill of `prompt + output` with log probabilities, nothing generated. What is compared with what is in
`tasks.audit.likelihood`.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray

from tasks.audit.likelihood import TOLERANCE, TOP, at_temperature, not_drawable, off_kept, outlying, surprise
from tasks.audit.report import AuditReport, Check
from tasks.audit.sample import SampledRow
from tasks.audit.scorer import score_row
from tasks.dataset.scored import Scored
from tasks.dataset.stored import job_of, job_record
from tasks.errors import JobError, RowError, SurroundingsError, UnfaithfulError
from tasks.fleet.ensure import wait_ready
from tasks.job.spec import ServersSpec
from tasks.ledger.noted_servers import models_of
from tasks.rows.records import Request
from tasks.rows.verdicts import Code
from tasks.sglang.client import Access, ServerClient
from tasks.sglang.fingerprint import Fingerprint, ask_fingerprint, compare
from tasks.sglang.gates import refusals, same_model
from tasks.sglang.info import ServerInfo
from tasks.sglang.outcomes import AttemptError
from tasks.sglang.scoring import Scores
from tasks.sglang.settings import Patience, api_key_of
from tasks.store.contract import ObjectStore
from tasks.turns.mix import read_mix, sampling_of

AT_ONCE: Final = 8
"""Rows in flight: prefills are short, and the server may have other work."""

TRIES: Final = 5
"""Attempts at one row before the server counts as unable."""


@attrs.frozen(slots=True)
class Rescore:
    """What re-scoring is to do.

    Args:
        servers: the one server that is asked, and how.
        rows: size of the sample.
        seed: of its choice.
        tolerance: nats by which a log probability may differ; see `tasks.audit.likelihood`.
    """

    servers: ServersSpec
    rows: int = 64
    seed: int = 0
    tolerance: float = TOLERANCE


async def rescore(
    store: ObjectStore, rows: Sequence[SampledRow], ask: Rescore, of: int
) -> tuple[Check, str, Scored]:
    """Send the rows to the server and judge them; return the check, what was done, how far was looked.

    Args:
        store: the job's own prefix.
        rows: the sample.
        ask: which server, and how.
        of: accepted rows of the dataset.

    Raises:
        JobError: more than one server, or its API key is not set here.
        SurroundingsError: the server is not there, or does not answer.
        UnfaithfulError: it cannot tell the truth about these ids: a gateway, or one that cuts prompts.
    """
    spec = ask.servers
    if len(spec.urls) != 1:
        raise JobError(f"rescore: expected one server, got {len(spec.urls)}")
    access = Access(api_key_of(spec), spec.connect_timeout_seconds, spec.info_timeout_seconds)
    job, record = job_of(store), job_record(store)
    check = Check("rescored")
    async with ServerClient(spec.urls[0], access) as client:
        await wait_ready(client, spec.ready_timeout_seconds)
        info = await client.info()
        if reasons := refusals(info, {}):
            raise UnfaithfulError(f"{client.url}: not fit for re-scoring: " + "; ".join(reasons))
        await _check_model(client, info, [Fingerprint.read(model) for model in models_of(store)])
        size = int(record["resolved"]["tokenizer"]["size"])
        scored, unfit = await _score_all(client, rows, size, check)
    mixes = read_mix(job.sampling.mix)
    drawn = [sampling_of(mixes, record["resolved"]["sampling"], row.mix) for row, _ in scored]
    judge(check, scored, drawn, size, ask.tolerance)
    looked = looked_at([row for row, _ in scored], drawn, of)
    told = f"{len(scored)} rows on {client.url}, {looked.held} of them held to kept logprobs"
    if unfit:
        told += f"; {unfit} longer than that server takes"
    if not same_model(job.model.tokenizer, served := info.tokenizer_path or info.model_path):
        told += f"; it serves {served or 'an untold model'}, the rows are of {job.model.tokenizer}"
    return check, f"rescored: {told}", looked


async def _check_model(client: ServerClient, info: ServerInfo, models: Sequence[Fingerprint]) -> None:
    """Raise UnfaithfulError when a server has none of the models that made the dataset."""
    for model in models:
        told = await ask_fingerprint(client, np.array(model.ids, np.int32), info)
        if told is None or compare(model, told) != "other":
            return
    if models:
        raise UnfaithfulError(
            f"{client.url}: not fit for re-scoring: expected a model that made these rows, "
            f"{', '.join(map(str, models))}, got {info.model_path or 'unnamed'} with other log probabilities"
        )


async def rescored(
    report: AuditReport, store: ObjectStore, sample: Sequence[SampledRow], ask: Rescore
) -> AuditReport:
    """Return the report with the check `rescored`; raises as `rescore`."""
    check, told, looked = await rescore(store, sample, ask, int(report.rows["accepted"]))
    return attrs.evolve(
        report, checks=(*report.checks, check), notices=(*report.notices, told), rescored=looked
    )


async def _score_all(
    client: ServerClient, rows: Sequence[SampledRow], size: int, check: Check
) -> tuple[list[tuple[SampledRow, Scores]], int]:
    """Return the rows with their scores, and how many are too long for the server."""
    room = asyncio.Semaphore(AT_ONCE)
    scored: list[tuple[SampledRow, Scores]] = []
    unfit = 0

    async def one(row: SampledRow) -> None:
        nonlocal unfit
        async with room:
            try:
                scored.append((row, await _score(client, row, size)))
            except RowError as error:
                if error.code == Code.PROMPT_TOO_LONG:
                    unfit += 1
                else:
                    check.problem(row.key, row.row, "ids that a server may be sent", error)

    try:
        async with asyncio.TaskGroup() as group:
            for row in rows:
                group.create_task(one(row), name=row.row_id)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return sorted(scored, key=lambda pair: (pair[0].key, pair[0].row)), unfit


async def _score(client: ServerClient, row: SampledRow, size: int) -> Scores:
    request = Request(row.row_id, row.ids, max_new_tokens=1, seed=0)
    patience, last = Patience(), ""
    for times in range(TRIES):
        try:
            return await score_row(client, request, row.prompt_length, TOP, size)
        except AttemptError as error:
            last = str(error)
        await asyncio.sleep(patience.backoff(times))
    raise SurroundingsError(f"{client.url}: {row.row_id} could not be re-scored: {last}")


def looked_at(rows: Sequence[SampledRow], drawn: Sequence[dict[str, Any]], of: int) -> Scored:
    """Return how far scored rows were looked at: exactly, or only as far as their sampling allows.

    Args:
        rows: that were scored.
        drawn: per row, how it was sampled.
        of: accepted rows of the dataset.
    """
    held, loose = 0, []
    for row, sampling in zip(rows, drawn, strict=True):
        if _kept(row, sampling) is not None:
            held += 1
        elif (temperature := float(sampling["temperature"])) > 0 or _penalised(sampling):
            loose.append(temperature)
    return Scored(of, len(rows), held, len(loose), tuple(sorted(set(loose))))


def _penalised(sampling: dict[str, Any]) -> bool:
    """Whether a repetition penalty stands between the raw log probabilities and those of the draw."""
    return bool(sampling.get("repetition_penalty", 1.0) != 1.0)


def _kept(row: SampledRow, sampling: dict[str, Any]) -> NDArray[np.float64] | None:
    """Return the kept log probabilities that a row can be held to, None where it has none."""
    return None if _penalised(sampling) else row.kept


def judge(
    check: Check,
    scored: Sequence[tuple[SampledRow, Scores]],
    drawn: Sequence[dict[str, Any]],
    size: int,
    tolerance: float = TOLERANCE,
) -> None:
    """Ask the three questions of every row.

    Args:
        check: takes the problems.
        scored: rows with their scores.
        drawn: per row, how it was sampled.
        size: of the vocabulary.
        tolerance: nats.
    """
    total = sum(scores.values.size for _, scores in scored)
    less = outlying(
        [
            surprise(scores.values, scores.best, float(sampling["temperature"]), size)
            for (_, scores), sampling in zip(scored, drawn, strict=True)
        ]
    )
    if -1 in less:
        check.problem("shards/", None, "rows as likely as the model leads to expect", less[-1])
    for place, (row, scores) in enumerate(scored):
        sampling = drawn[place]
        if (kept := _kept(row, sampling)) is not None:
            bounds = at_temperature(scores.values, scores.best, float(sampling["temperature"]), size)
            wrong = off_kept(kept, scores.values, bounds, tolerance)
            expected = f"{row.row_id}: log probabilities of its generation within {tolerance} nats"
            check.expect(not wrong, row.key, expected, wrong, row.row)
        wrong = not_drawable(scores.values, scores.best, sampling, size, total, tolerance)
        check.expect(not wrong, row.key, f"{row.row_id}: ids that its sampling can draw", wrong, row.row)
        wrong = less.get(place, "")
        check.expect(not wrong, row.key, f"{row.row_id}: as likely as the other rows are", wrong, row.row)
