"""Where two sequences of ids differ (pure)."""

from collections.abc import Sequence
from difflib import SequenceMatcher

import attrs

from tasks.report.retokenized import first_difference


@attrs.frozen(slots=True)
class Difference:
    """Ids [start, stop) of one sequence stand where [other_start, other_stop) of the other do."""

    start: int
    stop: int
    other_start: int
    other_stop: int


def differences(one: Sequence[int], other: Sequence[int]) -> list[Difference]:
    """Return where two sequences differ, in order; what they begin and end with in common is passed fast."""
    begin = first_difference(one, other)
    end = first_difference(one[begin:][::-1], other[begin:][::-1])
    left, right = one[begin : len(one) - end], other[begin : len(other) - end]
    matcher = SequenceMatcher(None, left, right)
    return [
        Difference(begin + a, begin + b, begin + c, begin + d)
        for tag, a, b, c, d in matcher.get_opcodes()
        if tag != "equal"
    ]
