"""Make one server fit for token data, or say why it is not: wait, parser off, gates, probe."""

import asyncio
from typing import Any

import attrs

from tasks.errors import LaterError, ServerError, SurroundingsError, UnfaithfulError
from tasks.sglang.client import ServerClient, open_session
from tasks.sglang.clock import loop_seconds
from tasks.sglang.fingerprint import Fingerprint, ask_fingerprint, is_gibberish
from tasks.sglang.gates import refusals, same_model, unwanted, warnings
from tasks.sglang.info import ServerInfo
from tasks.sglang.judge import FAITHFUL, UNFAITHFUL, ProbePlan
from tasks.sglang.outcomes import AttemptError
from tasks.sglang.probe import ProbeReport, probe_server
from tasks.sglang.restart.restart import Restarted
from tasks.sglang.restart.restart_policy import turn_parser_off
from tasks.sglang.settings import FleetSettings, Say, say_nothing


@attrs.frozen(slots=True, eq=False)
class ServerReport:
    """A server that passed.

    Args:
        url: the server.
        info: what it says of itself, after any restart.
        probe: what it does to token ids.
        warnings: what a person should know, one sentence each.
        slots: rows it decodes at once, None if unknown.
        waited_seconds: until it was ready.
        restarted: the restart, if there was one.
        fingerprint: of the model that it serves; None where it tells no log probabilities.
    """

    url: str
    info: ServerInfo
    probe: ProbeReport
    warnings: tuple[str, ...]
    slots: int | None
    waited_seconds: float
    restarted: Restarted | None = None
    fingerprint: Fingerprint | None = None

    def lines(self) -> list[str]:
        """Return the report as plain lines for a person."""
        restart = self.restarted.lines() if self.restarted else []
        return [*restart, *self.probe.lines(), *(f"  note  {warning}" for warning in self.warnings)]

    def describe(self) -> dict[str, Any]:
        """Return the report as JSON-able data: the probe's object with warnings, slots and restart."""
        return self.probe.describe() | {
            "warnings": list(self.warnings),
            "slots": self.slots,
            "waited_seconds": round(self.waited_seconds, 3),
            "restarted": self.restarted is not None,
        }


async def wait_ready(client: ServerClient, timeout_seconds: float, say: Say = say_nothing) -> float:
    """Wait until a server's `/health` is 200, patient with loading and absent ones; return the seconds.

    Raises:
        SurroundingsError: it was not ready after `timeout_seconds`, or is no SGLang server.
    """
    begun, last, pause = loop_seconds(), "", 0.2
    while True:
        left = timeout_seconds - (loop_seconds() - begun)
        state, seen = await client.health(timeout_seconds=max(1.5, min(25.0, left)))
        waited = loop_seconds() - begun
        if state == "ready":
            return waited
        if state == "foreign":
            raise await client.not_sglang(f"/health: {seen}")
        if waited >= timeout_seconds:
            raise SurroundingsError(
                f"{client.url}: expected a ready SGLang server, not so for {waited:.0f} s (last: {seen})"
            )
        if state != last:
            say(f"{client.url}: {state}, waiting up to {timeout_seconds:.0f} s ({seen})")
        last = state
        await asyncio.sleep(min(pause, max(0.0, left)))
        pause = min(5.0, pause * 1.5)


async def ensure_server(
    client: ServerClient, settings: FleetSettings, say: Say = say_nothing
) -> ServerReport:
    """Make one server fit for token data.

    Raises:
        SurroundingsError: it is not there in time, refuses the key, or cannot be restarted.
        UnfaithfulError: its parser is on and stays on, its version or flags change tokens, or the probe
            shows that it does; carries the evidence.
        ServerError: it answered, and then did not.
    """
    spec, plan = settings.servers, settings.plan
    waited = await wait_ready(client, spec.ready_timeout_seconds, say)
    info = await client.info()
    _refuse_unfit(info, plan)  # before a restart, too: what is not fit is left as it is
    restarted = None
    if unwanted(info, spec):
        restarted = await turn_parser_off(client, settings, info, say)
        info = await client.info()
        if left := unwanted(info, spec):
            raise UnfaithfulError(f"{client.url}: {', '.join(left)} is on after the restart too")
    _refuse_unfit(info, plan)
    _check_probe(probe := await probe_server(client, plan, info))
    told = await ask_fingerprint(client, plan.fingerprint_ids, info)
    _check_model(probe, plan, told)
    notes = warnings(info, plan.tokenizer)
    if probe.verdict != FAITHFUL:
        notes.append(
            "the model did not close and end by itself within the cap: faithfulness is not fully shown"
        )
    return ServerReport(
        url=client.url,
        info=info,
        probe=probe,
        warnings=tuple(notes),
        slots=info.max_running_requests or await _slots(client),
        waited_seconds=waited,
        restarted=restarted,
        fingerprint=told,
    )


def _refuse_unfit(info: ServerInfo, plan: ProbePlan) -> None:
    if reasons := refusals(info, plan.sampling):
        raise UnfaithfulError(f"{info.url}: not fit for token data: " + "; ".join(reasons))


def _check_probe(probe: ProbeReport) -> None:
    if probe.verdict == UNFAITHFUL:
        evidence = "\n".join(probe.lines())
        raise UnfaithfulError(f"{probe.url}: the probe shows that this server changes token ids\n{evidence}")


def _check_model(probe: ProbeReport, plan: ProbePlan, told: Fingerprint | None) -> None:
    evidence = "\n".join(probe.lines())
    named = probe.server.tokenizer_path or probe.server.model_path
    other_text = any(c.name == "tokenizer" and not c.passed for c in probe.checks)
    unread = told is not None and is_gibberish(told, plan.vocab_size)
    if plan.tokenizer and other_text and (unread or not same_model(plan.tokenizer, named)):
        raise UnfaithfulError(
            f"{probe.url}: it serves another model: {named or 'unnamed'}, the job's is {plan.tokenizer}, "
            "and it tokenises text differently"
            + (" and finds ours less likely than ids drawn blindly" if unread else "")
            + f"\n{evidence}"
        )


async def _slots(client: ServerClient) -> int | None:
    try:
        loads = await client.loads()
    except AttemptError:
        return None
    return loads.max_running if loads else None


async def ensure_patiently(
    client: ServerClient, settings: FleetSettings, say: Say = say_nothing
) -> ServerReport:
    """`ensure_server`, again when the server answers and then does not, within its `ready_timeout_seconds`.

    Raises:
        SurroundingsError: it was not there in time, refuses the key, or cannot be restarted.
        UnfaithfulError: it is not fit for token data; carries the evidence.
    """
    begun, times = loop_seconds(), 0
    while True:
        try:
            return await ensure_server(client, settings, say)
        except (ServerError, LaterError) as error:
            waited = loop_seconds() - begun
            if waited > settings.servers.ready_timeout_seconds:
                raise SurroundingsError(
                    f"{client.url}: no usable answer for {waited:.0f} s: {error}"
                ) from error
            say(f"{client.url}: {error}; asking again")
            await asyncio.sleep(settings.patience.backoff(times))
            times += 1


async def ensure_servers(settings: FleetSettings, say: Say = say_nothing) -> tuple[ServerReport, ...]:
    """Make every server of a job fit, at once, with a session of its own; reports in the order of the URLs.

    For maintenance; a job uses `Fleet.ensure`, which begins with the servers that are ready.

    Raises:
        SurroundingsError: a server was not there in time.
        UnfaithfulError: a server is not fit for token data.
    """
    async with open_session(settings.access) as session:
        clients = [ServerClient(url, settings.access, session) for url in settings.servers.urls]
        tasks = [asyncio.ensure_future(ensure_patiently(client, settings, say)) for client in clients]
        try:
            return tuple(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
