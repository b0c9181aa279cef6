"""What a longest length costs: never a split, for a second half would lack its prefix (pure)."""

from typing import Any, Final, Literal

import attrs
import numpy as np

from tasks.export.masks import Mask
from tasks.rows.records import Ids

LENGTHS: Final = (4096, 8192, 16384, 32768)
"""Lengths in ids whose cost every export prints: what trainers are usually set to."""

OverLength = Literal["cut", "drop"]


def cut(ids: Ids, mask: Mask, longest: int | None, policy: OverLength) -> tuple[Ids, Mask] | None:
    """Return the first `longest` ids and their mask; None when nothing is left to learn, or the policy drops.

    Args:
        ids: int32[n].
        mask: bool[n].
        longest: in ids; None for no limit.
        policy: what becomes of a longer sequence.
    """
    if longest is None or ids.size <= longest:
        return ids, mask
    if policy == "drop" or not mask[:longest].any():
        return None
    return ids[:longest], mask[:longest]


@attrs.define(slots=True)
class LengthCost:
    """What one longest length would cost.

    Args:
        longest: in ids.
        rows_longer: sequences that are longer.
        rows_without: those of them of which nothing supervised would be left.
        lost_by_cut: supervised ids lost when longer sequences are cut.
        lost_by_drop: supervised ids lost when they are dropped.
    """

    longest: int
    rows_longer: int = 0
    rows_without: int = 0
    lost_by_cut: int = 0
    lost_by_drop: int = 0

    def add(self, mask: Mask) -> None:
        """Count one sequence by its mask, bool[n]."""
        if mask.size <= self.longest:
            return
        kept, lost = int(np.count_nonzero(mask[: self.longest])), int(np.count_nonzero(mask[self.longest :]))
        self.rows_longer += 1
        self.rows_without += kept == 0
        self.lost_by_cut += lost
        self.lost_by_drop += kept + lost

    def as_json(self, supervised: int) -> dict[str, Any]:
        """Return the row of the table; shares are of all supervised ids."""
        return attrs.asdict(self) | {
            "share_lost_by_cut": round(self.lost_by_cut / supervised, 6) if supervised else 0.0,
            "share_lost_by_drop": round(self.lost_by_drop / supervised, 6) if supervised else 0.0,
        }


def length_table() -> tuple[LengthCost, ...]:
    """Return an empty table of `LENGTHS`."""
    return tuple(LengthCost(longest) for longest in LENGTHS)
