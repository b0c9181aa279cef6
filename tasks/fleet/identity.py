"""Which model a dataset is of: what every server's fingerprint is compared with."""

import asyncio
from typing import Any, Protocol

import attrs

from tasks.errors import UnfaithfulError
from tasks.fleet.ensure import ServerReport
from tasks.sglang.client import ServerClient
from tasks.sglang.fingerprint import Fingerprint, Outcome, ask_fingerprint, compare, difference
from tasks.sglang.judge import ProbePlan
from tasks.sglang.settings import Say

ASKED_ANEW = 2
"""How often the first server is asked again, at once, to see what it differs from itself."""


class DatasetModels(Protocol):
    """What the dataset keeps of models, as data of `Fingerprint.describe`."""

    async def first(self, mine: dict[str, Any]) -> dict[str, Any]:
        """Return the fingerprint of the dataset's model: `mine` where it has none yet."""

    async def refused(self, other: dict[str, Any]) -> None:
        """Keep the fingerprint of a model that was refused, so that a person can name it."""

    async def allowed(self) -> list[dict[str, Any]]:
        """Return the fingerprints that the job lets in by name."""

    async def admitted(self, url: str, described: dict[str, Any]) -> None:
        """Note a server that is let in, with what it says of itself and its fingerprint."""


class Identity:
    """The dataset's one model, and which servers have it.

    Args:
        plan: how a server is asked.
        models: what the dataset keeps; None: nothing, so the first server of the fleet counts.
        say: takes lines for a person.
    """

    def __init__(self, plan: ProbePlan, models: DatasetModels | None, say: Say) -> None:
        self._plan, self._models, self._say = plan, models, say
        self._first: Fingerprint | None = None
        self._asking = asyncio.Lock()

    async def admit(self, client: ServerClient, report: ServerReport) -> None:
        """Let a server in that has the dataset's model, and note it.

        Raises:
            UnfaithfulError: it serves another model.
            AttemptError: it did not answer.
        """
        mine = report.fingerprint
        noted: dict[str, Any] = report.info.describe()
        if mine is not None:
            outcome, first = await self._judge(client, report, mine)
            if outcome == "other":
                raise await self._refusal(report.url, mine, first)
            nats = round(difference(first, mine), 2)
            noted["fingerprint"] = {"name": first.name if outcome == "same" else mine.name, "nats": nats}
            noted["fingerprint"]["outcome"] = outcome
            if outcome != "same":
                self._say(
                    f"{report.url}: {_apart(mine, first)}: unclear whether it is the dataset's; it goes on"
                )
        elif self._plan.fingerprint_ids.size:
            self._say(f"{report.url}: it tells no log probabilities: which model it serves is not known")
        if self._models is not None:
            await self._models.admitted(report.url, noted)

    async def fault(self, client: ServerClient, report: ServerReport) -> str:
        """Ask a server again that was let in; return why it must not go on, "" when it may.

        Raises:
            AttemptError: it did not answer.
        """
        if report.fingerprint is None:
            return ""
        now = await ask_fingerprint(client, self._plan.fingerprint_ids, report.info)
        if now is None:
            return "it tells no log probabilities any more"
        before = attrs.evolve(report.fingerprint, spread=self._first.spread if self._first else 0.0)
        return _apart(now, before) if compare(before, now) == "other" else ""

    async def _judge(
        self, client: ServerClient, report: ServerReport, mine: Fingerprint
    ) -> tuple[Outcome, Fingerprint]:
        async with self._asking:  # of two servers that come at once, one is the first
            if self._first is None:
                mine = await self._with_spread(client, report, mine)
                kept = mine if self._models is None else None
                self._first = kept or Fingerprint.read(await self._stored(mine))
            first = self._first
        outcome = compare(first, mine)
        if outcome == "other" and self._models is not None:
            for described in await self._models.allowed():
                if compare(allowed := Fingerprint.read(described), mine) != "other":
                    self._say(f"{report.url}: {mine}: let in by servers.allow_models ({allowed.name})")
                    return "same", allowed
        return outcome, first

    async def _stored(self, mine: Fingerprint) -> dict[str, Any]:
        assert self._models is not None
        return await self._models.first(mine.describe())

    async def _with_spread(
        self, client: ServerClient, report: ServerReport, mine: Fingerprint
    ) -> Fingerprint:
        asked = (ask_fingerprint(client, self._plan.fingerprint_ids, report.info) for _ in range(ASKED_ANEW))
        again = [each for each in await asyncio.gather(*asked) if each is not None]
        return attrs.evolve(mine, spread=round(max((difference(mine, one) for one in again), default=0.0), 4))

    async def _refusal(self, url: str, mine: Fingerprint, first: Fingerprint) -> UnfaithfulError:
        if self._models is not None:
            await self._models.refused(mine.describe())
        return UnfaithfulError(
            f"{url}: it serves another model: {_apart(mine, first)}. One dataset comes from one model: use a "
            f"store of its own for it, or let it in by name with servers.allow_models: [{mine.name}]"
        )


def _apart(mine: Fingerprint, first: Fingerprint) -> str:
    return (
        f"expected the dataset's, {first}, got {mine}: log probabilities of fixed ids differ by "
        f"{difference(first, mine):.2f} nats in the mean"
    )
