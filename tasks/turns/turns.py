"""Conversations in token space: which rows a batch gives, and what follows a finished row.

Knows neither files nor network. A turn's prompt is rendered anew from what was really said before it:
recorded user turns, and the model's own earlier answers decoded from their segments, with reasoning under the
field that the family's template reads (most templates then drop it, as they do when served live). That is the
work of `next_turn`, which any process may do; here is what is known of each conversation meanwhile.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import attrs
import numpy as np
import orjson
from numpy.typing import NDArray

from tasks.grammar.check import check_row
from tasks.grammar.grammar import Grammar
from tasks.rows.records import Completion, Request
from tasks.rows.verdicts import CUT
from tasks.turns.continuation import continuation_of, merge_rounds
from tasks.turns.conversations import Conversation, RecordLike, plan_conversations
from tasks.turns.mix import Mix
from tasks.turns.next_turn import Answer, Step, TurnRules, Work


class BatchTurns:
    """What follows what in one batch. Not thread-safe: one lane owns it.

    Args:
        conversations: of the batch; their row ids are unique.
        grammar: the job's.
        rules: of its rows.
        rounds: how often a row that is cut by length is continued.
    """

    def __init__(
        self, conversations: Sequence[Conversation], grammar: Grammar, rules: TurnRules, rounds: int = 0
    ) -> None:
        self.rules = rules
        self._conversations = tuple(conversations)
        self._grammar = grammar
        self._rounds = rounds
        self._partial: dict[str, Completion] = {}
        self._place: dict[str, tuple[Conversation, int]] = {}
        self._answers: dict[Conversation, tuple[Answer, ...]] = {}
        for conversation in self._conversations:
            for turn, name in enumerate(conversation.row_ids):
                self._place[name] = (conversation, turn)
        names = [name for c in self._conversations for name in c.row_ids]
        if len(self._place) < len(names):
            twice = [name for name, count in Counter(names).items() if count > 1]
            raise ValueError(f"row ids must be unique, these come twice: {twice[:3]}")
        self.row_ids: tuple[str, ...] = tuple(names)

    @property
    def turn_numbers(self) -> NDArray[np.int16]:
        """int16[rows]: zero-based turn of each row."""
        return np.array([c.turns[turn] for c, turn in self._place.values()], np.int16)

    @property
    def sample_numbers(self) -> NDArray[np.int16]:
        """int16[rows]: zero-based sample of each row."""
        return np.array([c.sample for c, _ in self._place.values()], np.int16)

    @property
    def metadata(self) -> tuple[str, ...]:
        """Per row the source record's other fields as JSON, with the mixture's choice under `mix`."""
        return tuple(_with_mix(c.metadata, self.rules.mix_of(c)) for c, _ in self._place.values())

    def opening(self, done: Mapping[str, Completion]) -> list[Work]:
        """Return the work that leads to each conversation's first request; nothing for those that are done.

        Args:
            done: finished rows by id, from the journal; sent and unsent.
        """
        self._partial.clear()  # of an attempt at the batch that broke off
        self._answers.clear()
        works = []
        for conversation in self._conversations:
            finished: list[Completion] = []
            for name in conversation.row_ids:
                if name not in done:
                    works.append(Work(conversation, (), tuple(finished)))
                    break
                finished.append(done[name])
        return works

    def following(self, completion: Completion) -> Work | None:
        """Return the work that leads on from a finished row; None when it was the conversation's last."""
        conversation, turn = self._place[completion.row_id]
        answers = self._answers.pop(conversation, ())
        return Work(conversation, answers, (completion,)) if turn + 1 < len(conversation.turns) else None

    def took(self, works: Sequence[Work], steps: Sequence[Step]) -> tuple[list[Request], list[Completion]]:
        """Keep what was said as history; return the requests, and the rows that nobody can make."""
        for work, step in zip(works, steps, strict=True):
            if step.request is not None:
                self._answers[work.conversation] = step.answers
        requests = [step.request for step in steps if step.request is not None]
        return requests, [row for step in steps for row in step.unsent]

    def resume_cut(self, partial: Completion, cap: int) -> Request | None:
        """Return the request that takes up a stored cut row; its answer is merged when it is settled.

        Args:
            partial: the row as it was committed.
            cap: ids that may be added.
        """
        return self._continued(partial, cap)

    def settle(self, completion: Completion) -> Completion | Request:
        """Return what is kept of a reply: the row, all its rounds merged, or the request of its next round.

        A row is continued when it was cut by length and is intact, while rounds and room are left (policy
        `on_length: continue`). Rounds are held in memory only: a crash costs them, as all that is in flight.
        """
        before = self._partial.pop(completion.row_id, None)
        if before is not None:
            if not completion.sent:
                return before
            completion = merge_rounds(before, completion)
        made = int(completion.facts.get("continuations", 0))
        if made >= self._rounds or completion.finish_reason != "length":
            return completion
        if check_row(self._grammar, completion).code not in CUT:
            return completion
        conversation, _ = self._place[completion.row_id]
        return self._continued(completion, self.rules.cap_of(conversation)) or completion

    def _continued(self, partial: Completion, cap: int) -> Request | None:
        conversation, turn = self._place[partial.row_id]
        rules = self.rules
        request = continuation_of(partial, rules.resolved.seed, cap, rules.limits, conversation.name)
        if request is None:
            return None
        self._partial[partial.row_id] = partial
        return attrs.evolve(
            request,
            turn=conversation.turns[turn],
            sample=conversation.sample,
            sampling=rules.sampling_of(conversation),
            logprobs="logprobs" in partial.facts,
        )


def _with_mix(metadata: str, mix: Mix | None) -> str:
    if mix is None:
        return metadata
    fields = orjson.loads(metadata or "{}")
    if "mix" in fields:  # the record's own
        fields["record_mix"] = fields["mix"]
    return orjson.dumps({**fields, "mix": mix.name}).decode()


__all__ = ["BatchTurns", "Conversation", "RecordLike", "plan_conversations"]
