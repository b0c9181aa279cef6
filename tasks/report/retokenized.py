"""What becomes of ids that go through text: decoded and encoded again, as data made of text is (pure)."""

from collections.abc import Callable, Iterable, Sequence

import attrs

from tasks.rows.records import Ids

WIDTH = 8
"""Ids that are shown of each side, from the first that differs on."""


@attrs.frozen(slots=True)
class Changed:
    """A row whose ids are others after decoding and encoding.

    Args:
        row_id: the row.
        at: index of the first id that differs, among those compared.
        before: ids as the model made them, from there on.
        after: ids as its text is encoded.
    """

    row_id: str
    at: int
    before: tuple[int, ...]
    after: tuple[int, ...]


@attrs.frozen(slots=True)
class Retokenized:
    """How many of the compared rows text would have changed; `first` are some of them."""

    rows: int
    changed: int
    first: tuple[Changed, ...]

    @property
    def share(self) -> float | None:
        """Changed rows over compared rows; None when none was compared."""
        return self.changed / self.rows if self.rows else None

    def sentence(self) -> str:
        """Return the finding for a person."""
        if self.share is None:
            return "no accepted output to decode and encode again"
        return (
            f"decoding and encoding again would have changed the ids of {self.changed} of {self.rows} "
            f"outputs ({self.share:.2%})"
        )


def retokenize(
    outputs: Iterable[tuple[str, Ids]],
    decode: Callable[[Sequence[int]], str],
    encode: Callable[[str], Sequence[int]],
    most_shown: int = 5,
) -> Retokenized:
    """Compare outputs with the ids of their own text.

    Args:
        outputs: (row id, int32[n]).
        decode: ids to text, control tokens as their text.
        encode: text to ids, a control token's text as its id, nothing added.
        most_shown: how many changed rows are kept.
    """
    rows = changed = 0
    first: list[Changed] = []
    for row_id, ids in outputs:
        rows += 1
        before = ids.tolist()
        after = list(encode(decode(before)))
        if before != after:
            changed += 1
            if len(first) < most_shown:
                at = first_difference(before, after)
                first.append(
                    Changed(row_id, at, tuple(before[at : at + WIDTH]), tuple(after[at : at + WIDTH]))
                )
    return Retokenized(rows, changed, tuple(first))


def first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the first index at which two sequences differ: their common length if one begins the other."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
