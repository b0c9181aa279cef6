"""What an export counts: every row read is written, or is in exactly one other number (pure)."""

from collections import Counter
from typing import Any, Final

import attrs

from tasks.export.example import Example
from tasks.export.lengths import LengthCost, length_table
from tasks.export.order import SPLITS

NAMED: Final = 100
"""Refused rows that are named per reason; the rest is only counted."""


@attrs.define(slots=True)
class Tally:
    """Numbers of an export, in rows unless they say ids.

    Args:
        read: sequences looked at, each time that one is.
        turns_merged: rows that are part of a longer one.
        left_out_by_weight: of stores whose weight is no whole number.
        repeated: came before in the same round.
        refused: per reason, how many.
        refused_rows: per reason, the first of their ids.
        cut: written, but cut at `max_length`.
        supervised_cut: supervised ids lost by that.
        written: per split.
        tokens: ids per split.
        supervised: positions that count, per split.
        whole_supervised: supervised ids of all sequences before any cut.
        lengths: what the usual longest lengths would cost.
    """

    read: int = 0
    turns_merged: int = 0
    left_out_by_weight: int = 0
    repeated: int = 0
    refused: Counter[str] = attrs.field(factory=Counter)
    refused_rows: dict[str, list[str]] = attrs.field(factory=dict)
    cut: int = 0
    supervised_cut: int = 0
    written: Counter[str] = attrs.field(factory=Counter)
    tokens: Counter[str] = attrs.field(factory=Counter)
    supervised: Counter[str] = attrs.field(factory=Counter)
    whole_supervised: int = 0
    lengths: tuple[LengthCost, ...] = attrs.field(factory=length_table)

    def refuse(self, reason: str, example: Example) -> None:
        """Count a row that is not written, and name it while there are few."""
        self.refused[reason] += 1
        named = self.refused_rows.setdefault(reason, [])
        if len(named) < NAMED:
            named.append(example.row_id)

    def as_json(self) -> dict[str, Any]:
        """Return the numbers as the manifest and `rawseq export --json` have them."""
        return {
            "rows": {
                "read": self.read,
                "turns_merged": self.turns_merged,
                "left_out_by_weight": self.left_out_by_weight,
                "repeated": self.repeated,
                "refused": dict(sorted(self.refused.items())),
                "cut": self.cut,
                "written": {split: self.written[split] for split in SPLITS},
            },
            "refused_rows": dict(sorted(self.refused_rows.items())),
            "tokens": {split: self.tokens[split] for split in SPLITS},
            "supervised": {split: self.supervised[split] for split in SPLITS},
            "supervised_lost_by_cut": self.supervised_cut,
            "lengths": [cost.as_json(self.whole_supervised) for cost in self.lengths],
        }
