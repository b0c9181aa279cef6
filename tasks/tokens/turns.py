"""Conversations in token space: which rows a record gives, and what follows a finished row.

Knows neither files nor network. A turn's prompt is rendered anew from what was really said before it:
recorded user turns, and the model's own earlier answers decoded from their segments, with reasoning under the
field that the family's template reads (most templates then drop it, as they do when served live).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import orjson
from numpy.typing import NDArray

from tasks.errors import RowError
from tasks.records import Completion, Request
from tasks.tokens.calls import as_call, splice_results
from tasks.tokens.continuation import continuation_of, merge_rounds
from tasks.tokens.conversations import Conversation, RecordLike, plan_conversations
from tasks.tokens.grammar import Grammar, check_row
from tasks.tokens.mixture import Mix, choose_mix
from tasks.tokens.replies import answer_message
from tasks.tokens.sampling import LengthLimits, ResolvedSampling, row_cap, row_seed
from tasks.tokens.template import render
from tasks.tokens.vocabulary import Vocabulary
from tasks.verdicts import CANONICAL, CUT, Code

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
        tools_match: str = "name_args",
        mixes: Sequence[Mix] = (),
        rounds: int = 0,
    ) -> None:
        self._conversations = tuple(conversations)
        self._vocabulary = vocabulary
        self._grammar = grammar
        self._resolved = resolved
        self._limits = limits
        self._policy = control_tokens
        self._match = tools_match
        self._mixes = tuple(mixes)
        self._rounds = rounds
        self._partial: dict[str, Completion] = {}
        self._place: dict[str, tuple[Conversation, int]] = {}
        self._answers: dict[tuple[str, str, int], list[list[dict[str, Any]]]] = {}
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
        if not self._mixes:
            return tuple(c.metadata for c, _ in self._place.values())
        return tuple(_with_mix(c.metadata, self._mix(c)) for c, _ in self._place.values())

    def open(self, done: Mapping[str, Completion]) -> tuple[list[Request], list[Completion]]:
        """Return each conversation's first request not in `done`, and the rows that nobody can make.

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

    def resume_cut(self, partial: Completion, cap: int) -> Request | None:
        """Return the request that takes up a stored cut row; its answer is merged when it is settled.

        Args:
            partial: the row as it was committed.
            cap: ids that may be added.
        """
        conversation, turn = self._place[partial.row_id]
        request = continuation_of(partial, self._resolved.seed, cap, self._limits, _affinity(conversation))
        if request is None:
            return None
        self._partial[partial.row_id] = partial
        return attrs.evolve(
            request,
            turn=conversation.turns[turn],
            sample=conversation.sample,
            sampling=self._sampling(conversation),
        )

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
        if made >= self._rounds or check_row(self._grammar, completion).code not in CUT:
            return completion
        conversation, turn = self._place[completion.row_id]
        request = continuation_of(
            completion, self._resolved.seed, self._cap(conversation), self._limits, _affinity(conversation)
        )
        if request is None:
            return completion
        self._partial[completion.row_id] = completion
        return attrs.evolve(
            request,
            turn=conversation.turns[turn],
            sample=conversation.sample,
            sampling=self._sampling(conversation),
        )

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
            return None, [
                _unsent(name, conversation.code, conversation.error) for name in conversation.row_ids
            ]
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
        answer = answer_message(self._vocabulary, self._grammar, completion, verdict)
        results, fault = self._results(conversation, completion.row_id, answer)
        if fault:
            self._answers.pop(_key(conversation), None)
            return fault
        self._answers.setdefault(_key(conversation), []).append([answer, *results])
        return ""

    def _results(
        self, conversation: Conversation, name: str, answer: Mapping[str, Any]
    ) -> tuple[list[dict[str, Any]], str]:
        """Return the recorded tool results that answer this answer's calls, or why the conversation ends."""
        _, turn = self._place[name]
        recorded, results = conversation.results_after(turn)
        calls = [as_call(call) for call in answer.get("tool_calls", ())]
        if not calls:
            return [], f"{name} calls no tool, but tool results are recorded next" if results else ""
        spliced = splice_results(calls, recorded, results, self._match)
        if not spliced:
            return [], f"{name} makes calls to which no recorded result fits (tools.match: {self._match})"
        return spliced, ""

    def _request(self, conversation: Conversation, turn: int) -> tuple[Request | None, list[Completion]]:
        name = conversation.row_ids[turn]
        answers = self._answers.get(_key(conversation), [])
        ids = _NO_IDS
        try:
            messages, own = conversation.history(turn, answers)
            args = self._args(conversation)
            ids = render(self._vocabulary, messages, conversation.tools, self._policy, own=own, args=args)
            cap = row_cap(self._limits, self._cap(conversation), ids.size)
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
            affinity=_affinity(conversation),
            sampling=self._sampling(conversation),
        ), []

    def _mix(self, conversation: Conversation) -> Mix | None:
        name = f"{_affinity(conversation)}~s{conversation.sample}"
        return choose_mix(self._mixes, self._resolved.seed, name)

    def _args(self, conversation: Conversation) -> dict[str, Any] | None:
        mix = self._mix(conversation)
        return None if mix is None else {**self._vocabulary.template_args, **mix.template_args}

    def _cap(self, conversation: Conversation) -> int:
        mix = self._mix(conversation)
        cap = self._resolved.max_new_tokens
        return cap if mix is None else int(mix.sampling.get("max_new_tokens", cap))

    def _sampling(self, conversation: Conversation) -> dict[str, Any]:
        mix = self._mix(conversation)
        given = {} if mix is None else mix.sampling
        return {name: value for name, value in given.items() if name != "max_new_tokens"}

    def _unreached(self, conversation: Conversation, start: int, why: str) -> list[Completion]:
        return [_unsent(name, Code.UNREACHED, why) for name in conversation.row_ids[start:]]


def _with_mix(metadata: str, mix: Mix | None) -> str:
    if mix is None:
        return metadata
    return orjson.dumps({**orjson.loads(metadata or "{}"), "mix": mix.name}).decode()


def _affinity(conversation: Conversation) -> str:
    return f"{conversation.source}:{conversation.record_id}"


def _key(conversation: Conversation) -> tuple[str, str, int]:
    return conversation.source, conversation.record_id, conversation.sample


def _unsent(name: str, code: Code, detail: str) -> Completion:
    return Completion(name, _NO_IDS, _NO_IDS, "unsent", code=code, detail=detail)


__all__ = ["BatchTurns", "Conversation", "RecordLike", "plan_conversations"]
