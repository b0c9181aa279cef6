"""Conversations that are taken on in this process: what a batch's lane does, without journal and servers."""

from collections.abc import Mapping, Sequence

from tasks.grammar.grammar import Grammar
from tasks.rows.lengths import LengthLimits
from tasks.rows.records import Completion, Request
from tasks.tokenizer.vocabulary import Vocabulary
from tasks.turns.conversations import Conversation
from tasks.turns.mix import Mix
from tasks.turns.next_turn import Step, TurnRules, Work, next_step
from tasks.turns.sampling import ResolvedSampling
from tasks.turns.turns import BatchTurns


class Talk(BatchTurns):
    """A batch's turns with the vocabulary at hand."""

    def __init__(
        self,
        conversations: Sequence[Conversation],
        vocabulary: Vocabulary,
        grammar: Grammar,
        resolved: ResolvedSampling,
        limits: LengthLimits,
        policy: str = "refuse",
        match: str = "name_args",
        mixes: tuple[Mix, ...] = (),
        rounds: int = 0,
    ) -> None:
        super().__init__(conversations, grammar, TurnRules(resolved, limits, policy, match, mixes), rounds)
        self._known = vocabulary, grammar

    def open(self, done: Mapping[str, Completion]) -> tuple[list[Request], list[Completion]]:
        """Return the next request of each conversation, and the rows not in `done` that nobody can make."""
        requests, unsent = self._led(self.opening(done))
        return requests, [row for row in unsent if row.row_id not in done]

    def follow(self, completion: Completion) -> tuple[Request | None, list[Completion]]:
        """Return the request behind a finished row, and the rows that nobody can make any more."""
        work = self.following(completion)
        requests, unsent = self._led([work] if work else [])
        return (requests[0] if requests else None), unsent

    def _led(self, works: list[Work]) -> tuple[list[Request], list[Completion]]:
        return self.took(works, self.steps(works))

    def steps(self, works: Sequence[Work]) -> list[Step]:
        """Return where works lead."""
        return [next_step(*self._known, self.rules, work) for work in works]
