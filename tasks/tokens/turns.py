"""Conversations in token space: which rows a record gives, and what follows a finished row.

Knows neither files nor network. A turn's prompt is rendered anew from what was really said before it:
recorded user turns, and the model's own earlier answers decoded from their segments, with reasoning under the
field that the family's template reads (most templates then drop it, as they do when served live).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.errors import RowError
from tasks.records import Completion, Request
from tasks.tokens.conversations import Conversation, RecordLike, plan_conversations
from tasks.tokens.grammar import Grammar, check_row
from tasks.tokens.replies import answer_message
from tasks.tokens.sampling import LengthLimits, ResolvedSampling, row_cap, row_seed
from tasks.tokens.template import render
from tasks.tokens.vocabulary import Vocabulary
from tasks.verdicts import CANONICAL, Code

_NO_IDS = np.zeros(0, np.int32)


class BatchTurns:
    """What follows what in one batch. Not thread-safe: one lane owns it.

    A conversation ends on a turn that is cut or has an integrity or behaviour fault: its later turns become
    `unreached`. A turn that cannot be rendered gets its code, and the ones after it `unreached` too.
    """

    def __init__(
        self,
        conversations: Sequence[Conversation],
        vocabulary: Vocabulary,
        grammar: Grammar,
        resolved: ResolvedSampling,
        limits: LengthLimits,
        control_tokens: str = "refuse",
    ) -> None:
        self._conversations = tuple(conversations)
        self._vocabulary = vocabulary
        self._grammar = grammar
        self._resolved = resolved
        self._limits = limits
        self._policy = control_tokens
        self._place: dict[str, tuple[Conversation, int]] = {}
        self._answers: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
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
        """Per row the source record's other fields as JSON."""
        return tuple(c.metadata for c, _ in self._place.values())

    def open(self, done: Mapping[str, Completion]) -> tuple[list[Request], list[Completion]]:
        """Return each conversation's first request that is not in `done`, and the rows that nobody can make.

        Args:
            done: finished rows by id, from the journal; sent and unsent.
        """
        requests: list[Request] = []
        unsent: list[Completion] = []
        for conversation in self._conversations:
            request, never = self._resume(conversation, done)
            requests += [request] if request is not None else []
            unsent += [row for row in never if row.row_id not in done]
        return requests, unsent

    def follow(self, completion: Completion) -> tuple[Request | None, list[Completion]]:
        """Return the request of the next turn after a finished one, and rows that now nobody can make."""
        conversation, turn = self._place[completion.row_id]
        if turn + 1 == len(conversation.turns):
            self._answers.pop(_key(conversation), None)
            return None, []
        fault = self._take(conversation, completion)
        if fault:
            return None, self._unreached(conversation, turn + 1, fault)
        return self._request(conversation, turn + 1)

    def _resume(
        self, conversation: Conversation, done: Mapping[str, Completion]
    ) -> tuple[Request | None, list[Completion]]:
        if conversation.error:
            return None, [_unsent(name, Code.BAD_RECORD, conversation.error) for name in conversation.row_ids]
        for turn, name in enumerate(conversation.row_ids):
            if name not in done:
                return self._request(conversation, turn)
            if turn + 1 < len(conversation.turns):
                fault = self._take(conversation, done[name])
                if fault:
                    return None, self._unreached(conversation, turn + 1, fault)
        return None, []

    def _take(self, conversation: Conversation, completion: Completion) -> str:
        """Keep the answer as history; return why the conversation ends here, "" when it goes on."""
        verdict = check_row(self._grammar, completion)
        if verdict.code not in CANONICAL:
            self._answers.pop(_key(conversation), None)
            return f"{completion.row_id} is {verdict.code}"
        if verdict.code == Code.COMPLETE_TOOLS:
            self._answers.pop(_key(conversation), None)
            return f"{completion.row_id} calls tools, and no result is recorded for the calls it made"
        answer = answer_message(self._vocabulary, self._grammar, completion, verdict)
        self._answers.setdefault(_key(conversation), []).append(answer)
        return ""

    def _request(self, conversation: Conversation, turn: int) -> tuple[Request | None, list[Completion]]:
        name = conversation.row_ids[turn]
        answers = self._answers.get(_key(conversation), [])
        ids = _NO_IDS
        try:
            messages, own = conversation.history(turn, answers)
            ids = render(self._vocabulary, messages, conversation.tools, self._policy, own=own)
            cap = row_cap(self._limits, self._resolved.max_new_tokens, ids.size)
        except RowError as error:
            row = Completion(
                name, ids, _NO_IDS, "unsent", code=error.code, code_offset=error.offset, detail=error.message
            )
            return None, [row, *self._unreached(conversation, turn + 1, f"{name} is {error.code}")]
        return Request(
            row_id=name,
            input_ids=ids,
            max_new_tokens=cap,
            seed=row_seed(self._resolved.seed, name),
            turn=conversation.turns[turn],
            sample=conversation.sample,
            affinity=f"{conversation.source}:{conversation.record_id}",
        ), []

    def _unreached(self, conversation: Conversation, start: int, why: str) -> list[Completion]:
        return [_unsent(name, Code.UNREACHED, why) for name in conversation.row_ids[start:]]


def _key(conversation: Conversation) -> tuple[str, str, int]:
    return conversation.source, conversation.record_id, conversation.sample


def _unsent(name: str, code: Code, detail: str) -> Completion:
    return Completion(name, _NO_IDS, _NO_IDS, "unsent", code=code, detail=detail)


__all__ = ["BatchTurns", "Conversation", "RecordLike", "plan_conversations"]
