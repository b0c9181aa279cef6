"""Which rows a record gives, and what stands in front of each answer."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import attrs

from tasks.tokens.rowid import row_id


class RecordLike(Protocol):
    """What a conversation needs of a source record."""

    @property
    def source(self) -> str:
        """Name of its source."""

    @property
    def record_id(self) -> str:
        """Its id within the source."""

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """Its messages, as recorded."""

    @property
    def tools(self) -> Sequence[Mapping[str, Any]] | None:
        """Its tool declarations."""

    @property
    def metadata(self) -> str:
        """Its other fields as JSON."""

    @property
    def error(self) -> str:
        """Why it is no usable record; "" for a good one."""


@attrs.frozen(slots=True, eq=False)
class Conversation:
    """One sample of one record.

    Args:
        source: name of its source.
        record_id: its id within the source.
        sample: zero-based sample.
        messages: as recorded.
        tools: tool declarations.
        turns: indexes of the turns that are generated.
        cuts: per generated turn, how many of the recorded messages come before its answer.
        regenerated: indexes into `messages` of recorded answers that are replaced by the model's own.
        metadata: the record's other fields as JSON.
        error: why no row of it can be made; "" for a good one.
    """

    source: str
    record_id: str
    sample: int
    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...]
    turns: tuple[int, ...]
    cuts: tuple[int, ...]
    regenerated: frozenset[int]
    metadata: str
    error: str

    @property
    def row_ids(self) -> tuple[str, ...]:
        """One row id per generated turn."""
        return tuple(row_id(self.source, self.record_id, turn, self.sample) for turn in self.turns)

    def history(
        self, turn: int, answers: Sequence[Mapping[str, Any]]
    ) -> tuple[list[Mapping[str, Any]], set[int]]:
        """Return the messages in front of generated turn number `turn`, and which of them the model wrote.

        Args:
            turn: position in `turns`.
            answers: the model's answers to the generated turns before it.
        """
        messages: list[Mapping[str, Any]] = []
        own: set[int] = set()
        start = 0
        for cut, answer in zip(self.cuts[:turn], answers, strict=True):
            messages += self._recorded(start, cut)
            own.add(len(messages))
            messages.append(answer)
            start = cut
        return messages + self._recorded(start, self.cuts[turn]), own

    def _recorded(self, start: int, stop: int) -> list[Mapping[str, Any]]:
        return [self.messages[i] for i in range(start, stop) if i not in self.regenerated]


def plan_conversations(records: Sequence[RecordLike], turns: str, samples: int) -> list[Conversation]:
    """Return the conversations of `records`, by record, then sample.

    Args:
        records: in source order.
        turns: `each` regenerates every recorded answer on regenerated history, `last` keeps the recorded
            history and generates the final answer, `first` answers the first user message only.
        samples: independent conversations per record.
    """
    return [_conversation(record, turns, sample) for record in records for sample in range(samples)]


def _conversation(record: RecordLike, turns: str, sample: int) -> Conversation:
    messages = tuple(record.messages)
    points = answer_points(messages)
    error = record.error or ("" if points else "no message asks for an answer")
    picked = list(enumerate(points)) or [(0, 0)]
    if turns != "each":
        picked = picked[-1:] if turns == "last" else picked[:1]
    regenerated = frozenset(i for i, m in enumerate(messages) if m.get("role") == "assistant")
    return Conversation(
        source=record.source,
        record_id=record.record_id,
        sample=sample,
        messages=messages,
        tools=tuple(record.tools or ()),
        turns=tuple(turn for turn, _ in picked),
        cuts=tuple(point for _, point in picked),
        regenerated=regenerated if turns == "each" else frozenset(),
        metadata=record.metadata,
        error=error,
    )


def answer_points(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return how many messages come before each answer.

    One before every recorded answer, and one after every question (a user's message, or a tool's at the very
    end) that has none.
    """
    points = []
    for index, message in enumerate(messages):
        following = messages[index + 1].get("role") if index + 1 < len(messages) else None
        role = message.get("role")
        if role == "assistant":
            points.append(index)
        elif (role == "user" and following in (None, "user")) or (role == "tool" and following is None):
            points.append(index + 1)
    return points
