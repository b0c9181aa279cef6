"""Which model a dataset is of: what every server's fingerprint is compared with."""

import asyncio
from typing import Any, Protocol

import attrs
import numpy as np

from tasks.errors import UnfaithfulError
from tasks.fleet.ensure import ServerReport
from tasks.sglang.client import ServerClient
from tasks.sglang.fingerprint import Fingerprint, ask_fingerprint, compare, difference
from tasks.sglang.judge import ProbePlan
from tasks.sglang.settings import Say

ASKED_ANEW = 2
"""How often the first server is asked again, at once, to see what it differs from itself."""


class DatasetModels(Protocol):
    """What the dataset keeps of models, as data of `Fingerprint.describe`."""

    async def first(self) -> dict[str, Any] | None:
        """Return the fingerprint of the dataset's model, None where it has none yet."""

    async def begin(self, mine: dict[str, Any]) -> bool:
        """Make a model the dataset's; return False when it has one: another run was quicker."""

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
        self._begun = False
        self._chosen = ""  # the server whose model becomes the dataset's when rows are made
        self._unkept: list[tuple[str, dict[str, Any]]] = []  # servers, the same way
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
            async with self._asking:  # of two servers that come at once, one is the first
                first = await self._dataset_model(client, report, mine)
            noted["fingerprint"] = await self._judge(client, report, mine, first)
        elif self._plan.fingerprint_ids.size:
            self._say(f"{report.url}: it tells no log probabilities: which model it serves is not known")
        self._unkept.append((report.url, noted))
        if self._begun:
            await self._keep_servers()

    async def begin(self) -> None:
        """Make the first server's model the dataset's: rows are made from now on.

        Raises:
            UnfaithfulError: meanwhile another run has begun with another model.
        """
        async with self._asking:
            self._begun = True
            await self._keep_model()
        await self._keep_servers()

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
        return _apart(now, before, difference(before, now)) if compare(before, now) == "other" else ""

    async def _dataset_model(
        self, client: ServerClient, report: ServerReport, mine: Fingerprint
    ) -> Fingerprint:
        if self._first is None:
            stored = None if self._models is None else await self._models.first()
            if stored is None:
                self._first, self._chosen = await self._with_spread(client, report, mine), report.url
            else:
                self._first = Fingerprint.read(stored)
        if self._begun:
            await self._keep_model()
        assert self._first is not None
        return self._first

    async def _keep_model(self) -> None:
        """Keep the model of the first server as the dataset's, unless another run has kept its own."""
        url, mine = self._chosen, self._first
        if not url or mine is None or self._models is None:
            return
        first = mine
        if await self._models.begin(mine.describe()):
            self._say(f"{url}: its model is the dataset's from now on: {mine}")
        elif (stored := await self._models.first()) is not None:
            first = Fingerprint.read(stored)
        self._first, self._chosen = first, ""
        if compare(first, mine) == "other":
            raise await self._refusal(url, mine, first, difference(first, mine))

    async def _keep_servers(self) -> None:
        while self._unkept and self._models is not None:
            await self._models.admitted(*self._unkept.pop())

    async def _judge(
        self, client: ServerClient, report: ServerReport, mine: Fingerprint, first: Fingerprint
    ) -> dict[str, Any]:
        """Return what is noted of a server's model; raises UnfaithfulError where it is another one."""
        told = await self._asked_alike(client, report, mine, first)
        outcome, nats = compare(first, told), difference(first, told)
        if outcome == "other":
            allowed = await self._let_in(client, report, mine)
            if allowed is None:
                raise await self._refusal(report.url, mine, first, nats)
            self._say(f"{report.url}: {mine}: let in by servers.allow_models ({allowed['name']})")
            return allowed
        if outcome == "unclear":
            told_apart = _apart(mine, first, nats)
            self._say(f"{report.url}: {told_apart}: unclear whether it is the dataset's; it goes on")
        name = first.name if outcome == "same" else mine.name
        return {"name": name, "nats": round(nats, 2), "outcome": outcome}

    async def _let_in(
        self, client: ServerClient, report: ServerReport, mine: Fingerprint
    ) -> dict[str, Any] | None:
        """Return what is noted where the job allows the model by its name, else None."""
        for described in () if self._models is None else await self._models.allowed():
            allowed = Fingerprint.read(described)
            told = await self._asked_alike(client, report, mine, allowed)
            if (outcome := compare(allowed, told)) != "other":
                nats = round(difference(allowed, told), 2)
                return {"name": allowed.name, "nats": nats, "outcome": outcome}
        return None

    async def _asked_alike(
        self, client: ServerClient, report: ServerReport, mine: Fingerprint, kept: Fingerprint
    ) -> Fingerprint:
        """Return a server's fingerprint by what a kept one was asked: another release may ask otherwise."""
        if mine.ids == kept.ids:
            return mine
        return await ask_fingerprint(client, np.array(kept.ids, np.int32), report.info) or mine

    async def _with_spread(
        self, client: ServerClient, report: ServerReport, mine: Fingerprint
    ) -> Fingerprint:
        asked = (ask_fingerprint(client, self._plan.fingerprint_ids, report.info) for _ in range(ASKED_ANEW))
        again = [each for each in await asyncio.gather(*asked) if each is not None]
        return attrs.evolve(mine, spread=round(max((difference(mine, one) for one in again), default=0.0), 4))

    async def _refusal(self, url: str, mine: Fingerprint, first: Fingerprint, nats: float) -> UnfaithfulError:
        if self._models is not None:
            await self._models.refused(mine.describe())
        return UnfaithfulError(
            f"{url}: it serves another model: {_apart(mine, first, nats)}. One dataset comes from one model: "
            f"use a store of its own for it, or let it in by name with servers.allow_models: [{mine.name}]"
        )


def _apart(mine: Fingerprint, first: Fingerprint, nats: float) -> str:
    return (
        f"expected the dataset's, {first}, got {mine}: log probabilities of fixed ids differ by {nats:.2f} "
        "nats in the mean"
    )
