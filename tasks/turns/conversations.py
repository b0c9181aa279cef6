"""Which rows a record gives, and what stands in front of each answer."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import attrs
import numpy as np
from numpy.typing import NDArray

from tasks.rows.records import Ragged
from tasks.rows.row_id import row_id, split_row_id
from tasks.rows.verdicts import Code


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

    @property
    def code(self) -> Code:
        """What its rows are when it is none."""


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
        code: what its rows are then.
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
    code: Code = Code.BAD_RECORD

    @property
    def name(self) -> str:
        """Name of its record: what rows with equal ones share (a server's prefix cache, say)."""
        return f"{self.source}:{self.record_id}"

    @property
    def row_ids(self) -> tuple[str, ...]:
        """One row id per generated turn."""
        return tuple(row_id(self.source, self.record_id, turn, self.sample) for turn in self.turns)

    def history(
        self, turn: int, answers: Sequence[Sequence[Mapping[str, Any]]]
    ) -> tuple[list[Mapping[str, Any]], set[int]]:
        """Return the messages in front of generated turn number `turn`, and which of them the model wrote.

        Args:
            turn: position in `turns`.
            answers: per generated turn before it the model's own answer, and behind it the tool results that
                were spliced in.
        """
        messages: list[Mapping[str, Any]] = []
        own: set[int] = set()
        start = 0
        for cut, answer in zip(self.cuts[:turn], answers, strict=True):
            messages += self._recorded(start, cut)
            own.add(len(messages))
            messages += answer
            start = cut
        return messages + self._recorded(start, self.cuts[turn]), own

    def results_after(self, turn: int) -> tuple[Mapping[str, Any], list[Mapping[str, Any]]]:
        """Return the recorded answer of a generated turn ({} for none) and the tool results behind it."""
        cut = self.cuts[turn]
        recorded = self.messages[cut] if cut in self.regenerated else {}
        stop = self.cuts[turn + 1] if turn + 1 < len(self.cuts) else len(self.messages)
        return recorded, [m for m in self.messages[cut:stop] if m.get("role") == "tool"]

    def _recorded(self, start: int, stop: int) -> list[Mapping[str, Any]]:
        """Return what others said: recorded answers and the results of their calls are replaced, not kept."""
        kept = [i for i in range(start, stop) if i not in self.regenerated]
        if self.regenerated:
            kept = [i for i in kept if self.messages[i].get("role") != "tool"]
        return [self.messages[i] for i in kept]


def plan_conversations(records: Sequence[RecordLike], turns: str, samples: int) -> list[Conversation]:
    """Return the conversations of `records`, by record, then sample, then turn.

    Args:
        records: in source order.
        turns: `each` regenerates every recorded answer on regenerated history, `last` keeps the recorded
            history and generates the final answer, `first` answers the first user message only,
            `each_recorded` answers every turn on its recorded history, so that turns wait for none.
        samples: independent conversations per record.
    """
    return [
        conversation
        for record in records
        for sample in range(samples)
        for conversation in _conversations(record, turns, sample)
    ]


def _conversations(record: RecordLike, turns: str, sample: int) -> list[Conversation]:
    messages = tuple(record.messages)
    points = answer_points(messages)
    error = record.error or ("" if points else "no message asks for an answer")
    places = list(enumerate(points)) or [(0, 0)]
    picked = {"last": [places[-1:]], "first": [places[:1]], "each": [places]}.get(
        turns, [[place] for place in places]
    )
    answers = frozenset(i for i, m in enumerate(messages) if m.get("role") == "assistant")
    return [
        Conversation(
            source=record.source,
            record_id=record.record_id,
            sample=sample,
            messages=messages,
            tools=tuple(record.tools or ()),
            turns=tuple(turn for turn, _ in chosen),
            cuts=tuple(point for _, point in chosen),
            regenerated=answers if turns == "each" else frozenset(),
            metadata=record.metadata,
            error=error,
            code=record.code,
        )
        for chosen in picked
    ]


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


def extends_previous(row_ids: Sequence[str], inputs: Ragged, outputs: Ragged) -> NDArray[np.bool_]:
    """Return per row whether its prompt begins with prompt and output of the turn before it.

    Where it does (tool loops, templates that keep reasoning), an exporter may merge both turns.

    Args:
        row_ids: names of the rows; turns of a conversation need not be neighbours.
        inputs: prompt ids per row.
        outputs: output ids per row.
    """
    places = {split_row_id(name): row for row, name in enumerate(row_ids)}
    extends = np.zeros(len(row_ids), np.bool_)
    for (source, record, turn, sample), row in places.items():
        before = places.get((source, record, turn - 1, sample))
        if before is not None and outputs.row(before).size:
            whole = np.concatenate([inputs.row(before), outputs.row(before)])
            extends[row] = np.array_equal(inputs.row(row)[: whole.size], whole)
    return extends
