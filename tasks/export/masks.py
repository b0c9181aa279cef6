"""Which positions a trainer learns from (pure).

A mask is True where the id is the model's own and not switched off. A *boundary* then moves it to where a
trainer's own shift looks: without one ("raw") the mask says what the model made, and the trainer decides.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tasks.export.example import Example
from tasks.rows.records import Ids

Mask = NDArray[np.bool_]

SWITCHES: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "think": frozenset({"opener", "closer"}),
        "opener": frozenset({"opener"}),
        "closer": frozenset({"closer"}),
        "reasoning": frozenset({"reasoning"}),
        "content": frozenset({"content"}),
        "tool_calls": frozenset({"tool_calls"}),
        "end": frozenset({"end"}),
        "unknown": frozenset({"unknown"}),
    }
)
"""What `--mask` may switch off, and the kinds of segments that it means. `unknown` is what follows the fault
of a row that was included by its code."""


def loss_mask(example: Example, off: Iterable[str] = (), prefilled: int = 0) -> Mask:
    """Return bool[n]: True on the ids that the model made, without what is switched off.

    Args:
        example: the sequence.
        off: names of `SWITCHES`.
        prefilled: how many ids at the end of each prompt are a reasoning opener that the template wrote
            and that are to be learnt as if the model had (`prefilled_opener`).
    """
    kinds = frozenset(kind for name in off for kind in SWITCHES[name])
    mask = example.made
    for segment in example.segments:
        if segment.kind in kinds:
            mask[segment.start : segment.stop] = False
        elif segment.kind == "prompt" and prefilled:
            mask[max(segment.start, segment.stop - prefilled) : segment.stop] = True
    return mask


def prefilled_opener(prompt: Ids, tails: Iterable[Mapping[str, Any]], opener: tuple[int, ...]) -> int:
    """Return how many ids at the end of a prompt are a reasoning opener that the template wrote.

    Args:
        prompt: int32[n].
        tails: the job's prompt tails as `job.json` has them: `ids` and `mode`, the longest first.
        opener: ids that open reasoning, () for none.
    """
    if not opener:
        return 0
    for tail in tails:
        ids = tail["ids"]
        if len(ids) <= prompt.size and prompt[prompt.size - len(ids) :].tolist() == ids:
            starts = [at for at in range(len(ids)) if tuple(ids[at : at + len(opener)]) == opener]
            return len(ids) - starts[-1] if starts and tail["mode"] == "open" else 0
    return 0


def _raw(mask: Mask, made: Mask) -> Mask:
    return mask


def _specforge_eagle3(mask: Mask, made: Mask) -> Mask:
    """Position i reads id i+1 and learns id i+2: `TargetHead.preprocess` shifts ids and target alone."""
    moved = np.zeros_like(mask)
    moved[:-2] = made[1:-1] & mask[2:]
    return moved


def _speculators_eagle3(mask: Mask, made: Mask) -> Mask:
    """Position i reads id i and learns id i+1: `shift_batch` drops the first id, target and mask entry."""
    moved = np.zeros_like(mask)
    moved[:-1] = made[:-1] & mask[1:]
    return moved


BOUNDARIES: Final[Mapping[str, Callable[[Mask, Mask], Mask]]] = MappingProxyType(
    {
        "raw": _raw,
        "specforge-0.2.0-eagle3": _specforge_eagle3,
        "speculators-0.9.0-eagle3": _speculators_eagle3,
    }
)
"""How a trainer's version uses a mask. All but `raw` make exactly those positions count whose label is a
supervised id of the row and whose newest input id the model made: a drafter never runs earlier, because the
first id of an answer is the target's own."""


def at_boundary(name: str, mask: Mask, made: Mask) -> Mask:
    """Return the mask as the trainer's version needs it, so that the same ids are learnt.

    Args:
        name: of `BOUNDARIES`.
        mask: bool[n]: which ids are to be learnt.
        made: bool[n]: which ids the model made.
    """
    return BOUNDARIES[name](mask, made | mask)
