"""One sequence on its way to a trainer: ids, and what made which of them (pure)."""

from typing import Self

import attrs
import numpy as np
from numpy.typing import NDArray

from tasks.dataset.shard import ShardRows
from tasks.errors import DataError
from tasks.rows.records import Ids, Segment


@attrs.frozen(slots=True, eq=False)
class Example:
    """One row, or the turns of a conversation of which each extends the one before.

    Args:
        row_ids: of the turns, in order; the last one's prompt and output are `input_ids`.
        input_ids: int32[n].
        segments: named half-open ranges that tile [0, n); all but `prompt` are the model's own ids.
        verdict: code of the last turn.
        turn: zero-based, of the last turn.
        sample: zero-based sample of its prompt.
        metadata: the source record's other fields as JSON text.
    """

    row_ids: tuple[str, ...]
    input_ids: Ids
    segments: tuple[Segment, ...]
    verdict: str
    turn: int
    sample: int
    metadata: str

    @classmethod
    def of(cls, rows: ShardRows, row: int) -> Self:
        """Return row number `row` of a shard or a rejected file."""
        return cls(
            row_ids=(rows.row_ids[row],),
            input_ids=rows.sequences.row(row),
            segments=rows.segments[row],
            verdict=rows.verdicts[row],
            turn=int(rows.turns[row]),
            sample=int(rows.samples[row]),
            metadata=rows.metadata[row],
        )

    @property
    def row_id(self) -> str:
        """Id of its last turn."""
        return self.row_ids[-1]

    @property
    def record(self) -> str:
        """`<source>:<record id>`: all turns and samples of a source record share it."""
        return record_of(self.row_id)

    @property
    def prompt_length(self) -> int:
        """Ids in front of the first that the model made."""
        first = self.segments[0]
        return first.stop if first.kind == "prompt" else 0

    @property
    def made(self) -> NDArray[np.bool_]:
        """bool[n]: which ids the model made."""
        mask = np.ones(self.input_ids.size, np.bool_)
        for segment in self.segments:
            if segment.kind == "prompt":
                mask[segment.start : segment.stop] = False
        return mask

    def followed_by(self, after: Self) -> Self:
        """Return this turn and the next as one sequence, both turns' outputs known as the model's.

        Raises:
            DataError: the next turn's prompt does not begin with these ids, though its row says so.
        """
        size = self.input_ids.size
        if after.prompt_length < size or not np.array_equal(after.input_ids[:size], self.input_ids):
            raise DataError(
                f"{after.row_id}: expected a prompt that begins with the {size} ids of {self.row_id} "
                f"(extends_previous), got another"
            )
        between = (Segment("prompt", size, after.prompt_length),) if after.prompt_length > size else ()
        return attrs.evolve(
            after,
            row_ids=(*self.row_ids, *after.row_ids),
            segments=(*self.segments, *between, *after.segments[1:]),
        )


def record_of(row_id: str) -> str:
    """Return `<source>:<record id>` of a row id; both stay percent-encoded."""
    return row_id.partition("#")[0]
