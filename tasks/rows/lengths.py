"""Lengths that a server accepts: how long a prompt may be, and what it leaves for the answer (pure)."""

from collections.abc import Iterable
from typing import Self

import attrs


@attrs.frozen(slots=True)
class LengthLimits:
    """The lengths that one server accepts; None where it does not tell.

    Args:
        context_length: C of SGLang's length arithmetic.
        max_req_input_len: a prompt must be shorter than this.
        kv_tokens: K, the KV pool.
    """

    context_length: int | None = None
    max_req_input_len: int | None = None
    kv_tokens: int | None = None

    @classmethod
    def widest(cls, servers: Iterable[Self]) -> Self:
        """Return the limits of the server that takes the longest rows; unknown ones are the widest."""

        def width(limits: Self) -> tuple[float, float]:
            bounds = (limits.total, limits.longest_prompt)
            return bounds[0] or float("inf"), bounds[1] or float("inf")

        return max(servers, key=width, default=cls())

    @property
    def total(self) -> int | None:
        """min(C, K): what prompt and answer share."""
        known = [value for value in (self.context_length, self.kv_tokens) if value is not None]
        return min(known) if known else None

    @property
    def longest_prompt(self) -> int | None:
        """Longest prompt that is neither cut nor refused; SGLang 0.5.23: max_req_input_len = min(C,K) - 6."""
        if self.max_req_input_len is not None:
            bound = self.max_req_input_len - 1
        elif self.total is not None:
            bound = self.total - 7
        else:
            return None
        return bound if self.total is None else min(bound, self.total - 3)

    def takes(self, prompt_length: int) -> bool:
        """Whether a prompt of so many ids is taken."""
        longest = self.longest_prompt
        return longest is None or prompt_length <= longest

    def cap(self, wanted: int, prompt_length: int) -> int:
        """Return max_new_tokens behind such a prompt: `wanted`, or what is left (SGLang cuts past it)."""
        return wanted if self.total is None else min(wanted, self.total - 2 - prompt_length)
