"""One step over all slots: some pieces of prompts, then an id for every slot whose context is complete."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deployments.standin.generation import Generation
from deployments.standin.logprobs import Score, Wish, tell
from deployments.standin.network import ROWS, Network
from deployments.standin.sampling import Row, sample
from deployments.standin.weights import Float

Index = npt.NDArray[np.intp]

PIECES_PER_STEP = 8  # prompt pieces between two decode steps


@dataclass(frozen=True, slots=True)
class Picked:
    """The next id of a slot, with its score if that is wanted."""

    slot: int
    generation: Generation
    token: int
    score: Score | None


class Stepper:
    """The network, and how much of each slot's context lies in its cache."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.slots = network.cache.size[1]
        self._filled = [0] * self.slots  # ids of the context whose keys are there

    def clear(self, slot: int) -> None:
        """Forget a slot's cache: a new generation takes it."""
        self._filled[slot] = 0

    def step(self, held: Sequence[Generation | None]) -> list[Picked]:
        """Advance all slots by up to one id."""
        fresh = self._prefill(held)
        picked: list[Picked] = []
        for first in range(0, self.slots, ROWS):
            group = {
                slot: generation
                for slot, generation in enumerate(held[first : first + ROWS], first)
                if generation is not None and (slot in fresh or self._decodes(slot, generation))
            }
            if group:
                picked += self._advance(first // ROWS, group, fresh)
        return picked

    def _decodes(self, slot: int, generation: Generation) -> bool:
        """Whether there is a newest id and all the others lie in the cache."""
        return bool(generation.output) and self._filled[slot] == len(generation.context) - 1

    def _prefill(self, held: Sequence[Generation | None]) -> dict[int, Float]:
        """Fill caches piece by piece; returns the last hidden row of each context that became complete."""
        complete: dict[int, Float] = {}
        pieces = PIECES_PER_STEP
        for slot, generation in enumerate(held):
            if generation is None or not pieces or self._decodes(slot, generation):
                continue
            context = np.array(generation.context, np.intp)
            while pieces and self._filled[slot] < len(context):
                hidden = self.network.prefill(slot, context, self._filled[slot])
                if generation.wish is not None:
                    self._score_prompt(generation, generation.wish, hidden, self._filled[slot])
                self._filled[slot] += len(hidden)
                pieces -= 1
                if self._filled[slot] == len(context):
                    complete[slot] = hidden[-1]
        return complete

    def _advance(self, group: int, slots: dict[int, Generation], fresh: dict[int, Float]) -> list[Picked]:
        """One more id for the given slots of a group."""
        tokens, positions = np.zeros(ROWS, np.intp), np.full(ROWS, -1)
        for slot, generation in slots.items():
            if slot not in fresh:
                tokens[slot % ROWS] = generation.output[-1]
                positions[slot % ROWS] = self._filled[slot]
                self._filled[slot] += 1
        if positions.max() < 0:
            hidden: Float = np.zeros((ROWS, self.network.weights.shape.hidden), np.float32)
        else:
            hidden = self.network.decode(group, tokens, positions)
        for slot in slots.keys() & fresh.keys():
            hidden[slot % ROWS] = fresh[slot]
        logits = self.network.logits(hidden)
        chosen = sample(logits, [Row(slot % ROWS, g.choice, g.prompt, g.output) for slot, g in slots.items()])
        scores = _scores(slots, logits, chosen)
        return [
            Picked(slot, generation, int(token), scores.get(slot))
            for (slot, generation), token in zip(slots.items(), chosen, strict=True)
        ]

    def _score_prompt(self, generation: Generation, wish: Wish, hidden: Float, start: int) -> None:
        """Add the scores of the wished prompt ids that follow the rows of a piece from place `start`."""
        prompt, told = generation.prompt, generation.prompt_scores
        first = max(start, wish.start + len(told))  # the row of a place tells of the id behind it
        last = min(start + len(hidden), len(prompt) - 1)
        if first < last:
            logits = self.network.logits(hidden[first - start : last - start])
            told += tell(logits, prompt[first + 1 : last + 1], [wish.top] * (last - first))


def _scores(slots: dict[int, Generation], logits: Float, chosen: Index) -> dict[int, Score]:
    """The scores wished for, by slot, of chosen ids; logits float32[ROWS, vocabulary] as adjusted."""
    wished = [
        (slot, token, generation.wish)
        for (slot, generation), token in zip(slots.items(), chosen, strict=True)
        if generation.wish is not None
    ]
    if not wished:
        return {}
    rows, tokens, wishes = zip(*wished, strict=True)
    temperatures = np.array([wish.temperature for wish in wishes], np.float32)[:, None]
    lines = logits[np.array(rows) % ROWS] / temperatures
    return dict(zip(rows, tell(lines, tokens, [wish.top for wish in wishes]), strict=True))
