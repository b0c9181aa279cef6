"""What happened so far, so that a test can count generations that were made twice or for nothing."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from deployments.standin.generation import Generation


def prompt_key(ids: Sequence[int]) -> str:
    """16 hex digits of the sha256 of a prompt's ids as little-endian int32."""
    return hashlib.sha256(np.array(ids, "<i4").tobytes()).hexdigest()[:16]


@dataclass(slots=True)
class Counters:
    """Counts since the server's start."""

    requests: int = 0  # POST /generate received
    generations_started: int = 0
    generations_finished: int = 0
    generations_aborted: int = 0
    tokens: int = 0
    prompts_started: Counter[str] = field(default_factory=Counter)  # by prompt_key
    prompts_finished: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)  # times that each fault acted

    def started(self, prompt: Sequence[int]) -> None:
        """A generation got a slot."""
        self.generations_started += 1
        self.prompts_started[prompt_key(prompt)] += 1

    def ended(self, generation: Generation) -> None:
        """A generation has its finish_reason."""
        if generation.finish is not None and generation.finish["type"] == "abort":
            self.generations_aborted += 1
        else:
            self.generations_finished += 1
            self.prompts_finished[prompt_key(generation.prompt)] += 1

    def report(self) -> dict[str, Any]:
        """The reply of GET /standin/counters."""
        return {
            "requests": self.requests,
            "generations_started": self.generations_started,
            "generations_finished": self.generations_finished,
            "generations_aborted": self.generations_aborted,
            "tokens": self.tokens,
            "prompts_started": dict(self.prompts_started),
            "prompts_finished": dict(self.prompts_finished),
            "faults": dict(self.faults),
        }
