"""One generation from its arrival to its last id."""

import asyncio
import re
import time
from dataclasses import dataclass, field, replace
from typing import Any

from deployments.standin.sampling import Choice


@dataclass(frozen=True, slots=True)
class Stops:
    """What ends a generation, and how its text is shown."""

    limit: int  # most ids to generate, already capped by context and pool
    ids: frozenset[int] = frozenset()  # empty with ignore_eos, as on a genuine server
    texts: tuple[str, ...] = ()
    patterns: tuple[re.Pattern[str], ...] = ()
    skip_special_tokens: bool = True
    no_stop_trim: bool = False


@dataclass(slots=True, eq=False)
class Generation:
    """A prompt, how to sample, what came of it so far. The engine's thread writes; the event loop reads."""

    rid: str
    prompt: list[int]
    choice: Choice
    stops: Stops
    wants_logprobs: bool = False
    streams: bool = False
    output: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)  # natural logarithm, one per output id if wanted
    finish: dict[str, Any] | None = None
    retractions: int = 0
    cached: int = 0  # prompt ids whose keys were already there
    created: float = field(default_factory=time.time)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def context(self) -> list[int]:
        """Every id so far."""
        return self.prompt + self.output

    @property
    def reserved(self) -> int:
        """Cache positions that it can come to need."""
        return len(self.prompt) + self.stops.limit

    def snapshot(self) -> "Generation":
        """A copy that the engine's thread no longer touches: finished if and only if its ids are complete."""
        finish = self.finish  # first: the engine writes the last id before the reason
        output = list(self.output)
        return replace(self, finish=finish, output=output, logprobs=self.logprobs[: len(output)])
