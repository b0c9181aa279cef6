"""One generation from its arrival to its last id."""

import asyncio
import re
import time
from dataclasses import dataclass, field, replace
from typing import Any

from deployments.standin.logprobs import Score, Wish
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
    wish: Wish | None = None  # None: no log probabilities are wanted
    closer: int | None = None  # id that ends the reasoning, if its ids are to be counted
    streams: bool = False
    sent: bool = False  # whether a piece of the reply has gone out
    output: list[int] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)  # of the output ids, if wanted
    prompt_scores: list[Score] = field(default_factory=list)  # of the prompt ids behind wish.start
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

    @property
    def reasoning(self) -> int:
        """Output ids through the closer of the reasoning: all if it has not come, none if not counted."""
        if self.closer is None:
            return 0
        return self.output.index(self.closer) + 1 if self.closer in self.output else len(self.output)

    def snapshot(self) -> "Generation":
        """A copy that the engine's thread no longer touches: finished if and only if its ids are complete."""
        finish = self.finish  # first: the engine writes the last id before the reason
        output = list(self.output)
        told = len(output) if finish is None else max(len(output), 1)  # a cap of 0 has a score without an id
        return replace(self, finish=finish, output=output, scores=self.scores[:told])
