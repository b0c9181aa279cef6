"""Servers looked after without a job: each checked as a job would, restarted where allowed, reported."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

import attrs

from tasks.errors import RawseqError, UnfaithfulError
from tasks.fleet.ensure import ensure_patiently
from tasks.grammar.grammar import discover_grammar
from tasks.job.spec import ModelSpec, SamplingSpec, ServersSpec
from tasks.run.probing import probe_plan
from tasks.sglang.client import ServerClient, open_session
from tasks.sglang.judge import ProbePlan
from tasks.sglang.restart.idle import BusyError
from tasks.sglang.restart.process import place_of
from tasks.sglang.settings import Check, FleetSettings, Say, api_key_of, unchecked
from tasks.tokenizer.vocabulary import load_vocabulary
from tasks.turns.sampling import resolve_sampling

FIT, RESTARTED, BUSY, UNFIT, AWAY = "fit", "restarted", "busy", "unfit", "away"
"""As wanted · as wanted after a restart · not as wanted, but in use and left alone · changes tokens or has a
forbidden flag on · not there, or it cannot be used or restarted."""

Locks = Callable[[str], AbstractAsyncContextManager[Check]]
"""Server name (`place_of`) to the right to restart it."""

Users = Callable[[], Awaitable[Sequence[tuple[str, Sequence[str]]]]]
"""Asks who uses servers now: pairs of a name for people and server URLs."""


@attrs.frozen(slots=True)
class Tended:
    """What became of one server.

    Args:
        url: the server.
        state: `FIT`, `RESTARTED`, `BUSY`, `UNFIT` or `AWAY`.
        told: one sentence for a table.
        evidence: plain lines for a person: the probe, the restart, or the error whole.
        version: SGLang's, "" if unknown.
    """

    url: str
    state: str
    told: str
    evidence: str
    version: str = ""


async def tend_servers(
    servers: ServersSpec, model: ModelSpec, locks: Locks | None, users: Users, say: Say
) -> tuple[Tended, ...]:
    """Check every server, at once; restart those with a forbidden flag on as `servers` allows.

    A server that a running job uses, or that works for anybody, is not restarted unless `restart_busy`.

    Args:
        servers: which, and what may be done to them.
        model: whose tokens they are to make.
        locks: gives the right to restart a server; None: this host's lock alone.
        users: who uses servers now.
        say: takes lines for a person.

    Raises:
        TokenizerError: the tokenizer cannot be loaded.
        JobError: the API key's variable is not set here.
    """
    settings = FleetSettings(
        servers=servers,
        plan=await asyncio.to_thread(_plan, model),
        api_key=api_key_of(servers),
        lock=_unused(servers, users, locks),
    )
    async with open_session(settings.access) as session:
        clients = [ServerClient(url, settings.access, session) for url in servers.urls]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_tend(client, settings, say)) for client in clients]
    return tuple(task.result() for task in tasks)


def _plan(model: ModelSpec) -> ProbePlan:
    vocabulary = load_vocabulary(model)
    grammar = discover_grammar(vocabulary)
    return probe_plan(
        vocabulary, grammar, resolve_sampling(SamplingSpec(), vocabulary, grammar), model.tokenizer
    )


def _unused(servers: ServersSpec, users: Users, locks: Locks | None) -> Locks:
    """Return locks whose check, right before a server is stopped, also refuses one that a job uses."""

    @asynccontextmanager
    async def lock(server: str) -> AsyncIterator[Check]:
        async with locks(server) if locks else nullcontext(unchecked) as still_ours:

            async def check() -> None:
                await still_ours()
                using = [name for name, urls in await users() if server in map(place_of, urls)]
                if using and not servers.restart_busy:
                    raise BusyError(f"{server}: not restarted, it is a server of {', '.join(using)}")

            yield check

    return lock


async def _tend(client: ServerClient, settings: FleetSettings, say: Say) -> Tended:
    try:
        report = await ensure_patiently(client, settings, say)
    except RawseqError as error:
        told, state = str(error), AWAY
        if isinstance(error, BusyError):
            state = BUSY
        elif isinstance(error, UnfaithfulError):
            state = UNFIT
        return Tended(client.url, state, told.partition("\n")[0], told)
    state, told = FIT, f"probe: {report.probe.verdict}"
    if report.restarted is not None:
        state, told = RESTARTED, f"without {', '.join(report.restarted.flags)}, {told}"
    if report.warnings:
        told += f", {len(report.warnings)} notes"
    return Tended(client.url, state, told, "\n".join(report.lines()), report.info.version)


def problem_of(tended: Sequence[Tended]) -> str:
    """Return which servers are not fit, with the evidence, "" when none; one in use is no problem."""
    bad = [each for each in tended if each.state in (UNFIT, AWAY)]
    if not bad:
        return ""
    return f"{len(bad)} of {len(tended)} servers are not fit:\n" + "\n".join(each.evidence for each in bad)


def summary_of(tended: Sequence[Tended]) -> str:
    """Return how many servers are in which state, in one line."""
    states = [each.state for each in tended]
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))


def report_of(tended: Sequence[Tended]) -> str:
    """Return the report as Markdown: a table, and the evidence of each server below it."""
    rows = [
        f"| {each.url} | {each.state} | {each.version or '?'} | {each.told.replace('|', chr(92) + '|')} |"
        for each in tended
    ]
    parts = [f"### {each.url}: {each.state}\n```\n{each.evidence}\n```" for each in tended]
    table = ["| server | state | SGLang | |", "|---|---|---|---|", *rows]
    return "\n".join(table) + "\n\n" + "\n\n".join(parts) + "\n"
