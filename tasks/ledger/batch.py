"""The batch: a range of source records, and where they lie. Frozen shapes and their JSON."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, overload

import attrs
import orjson

from tasks.rows.shelf import Shelved

CAUSES: Final = ("duplicate", "excluded")
"""Why nothing is generated for a planned record."""


@attrs.frozen(slots=True)
class Span:
    """Neighbouring records of one source: `records` of them from `first_line` on, at byte `offset`.

    `digest`: hex sha256 over their contents, by which the source alone is known again; "" in older plans.
    """

    source: str
    first_line: int
    records: int
    offset: int
    digest: str = ""


@attrs.frozen(slots=True)
class Drop:
    """A planned record that nothing is generated for.

    Args:
        source: name of its source.
        line: its 1-based line or row there.
        cause: `duplicate`: an earlier record has its messages and tools; `excluded`: an excluded file has it.
        first: name of that earlier record, or file:line of the exclusion.
    """

    source: str
    line: int
    cause: str
    first: str


@attrs.frozen(slots=True)
class Batch:
    """The unit of retry, checkpoint and commit.

    Args:
        index: number of the batch in the job.
        start: first record, counted in plan order.
        stop: one past the last record.
        fingerprint: hex sha256 over job, what it resolved to, and the records; see `batch_fingerprint`.
        spans: where its records lie; together `stop - start` of them.
        seed: of the order in which the spans' records are interleaved (`interleaving`); None: span by span.
        dropped: its records that nothing is generated for, as JSON: there may be very many; see `drops`.
    """

    index: int
    start: int
    stop: int
    fingerprint: str
    spans: tuple[Span, ...]
    seed: int | None = None
    dropped: bytes = b""

    generation: ClassVar[int] = 0
    """Of the receipt that a batch of the plan gets: its first."""

    reason: ClassVar[str] = ""

    @property
    def drops(self) -> tuple[Drop, ...]:
        """Its records that nothing is generated for."""
        return tuple(Drop(*drop) for drop in orjson.loads(self.dropped or b"[]"))

    @property
    def name(self) -> str:
        """Name for people: number and record range."""
        return f"{self.index:06d} [{self.start},{self.stop})"


class Batches(Sequence[Batch]):
    """Batches by number, in a temporary file: a plan of 40,000 takes no more memory than one of ten.

    Each access reads the batch anew: keep what is used twice.

    Args:
        shelved: `[index, start, stop, fingerprint, spans, seed]` as JSON, a line feed, then what is dropped.
    """

    def __init__(self, shelved: Shelved | None = None) -> None:
        self._shelved = shelved or Shelved()

    def __len__(self) -> int:
        return len(self._shelved)

    @overload
    def __getitem__(self, at: int) -> Batch: ...
    @overload
    def __getitem__(self, at: slice) -> "Batches": ...
    def __getitem__(self, at: int | slice) -> "Batch | Batches":
        """Return a batch, or a range of them."""
        if isinstance(at, slice):
            return self.chosen(range(*at.indices(len(self))))
        head, _, dropped = self._shelved.record(at + len(self) if at < 0 else at).partition(b"\n")
        index, start, stop, fingerprint, spans, seed = orjson.loads(head)
        return Batch(index, start, stop, fingerprint, tuple(Span(*span) for span in spans), seed, dropped)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Batches) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(len(self))

    def with_more(self, batches: Iterable[Batch]) -> "Batches":
        """Return these and then `batches`, which are taken one at a time."""
        return Batches(self._shelved.with_more(map(_record, batches)))

    def chosen(self, numbers: Iterable[int]) -> "Batches":
        """Return the batches at these places, in their order."""
        return Batches(self._shelved.chosen(numbers))


def _record(batch: Batch) -> bytes:
    spans = [attrs.astuple(span) for span in batch.spans]
    head = [batch.index, batch.start, batch.stop, batch.fingerprint, spans, batch.seed]
    return orjson.dumps(head) + b"\n" + batch.dropped


def batch_json(batch: Batch) -> dict[str, Any]:
    """Return the JSON of one batch in a plan object."""
    return {
        "index": batch.index,
        "start": batch.start,
        "stop": batch.stop,
        "fingerprint": batch.fingerprint,
        "spans": [list(attrs.astuple(span))[: None if span.digest else 4] for span in batch.spans],
        **({} if batch.seed is None else {"seed": batch.seed}),
        **({"dropped": orjson.Fragment(batch.dropped)} if batch.dropped else {}),
    }


def batch_of(item: Mapping[str, Any]) -> Batch:
    """Read it back.

    Raises:
        KeyError, TypeError: it is none.
    """
    return Batch(
        item["index"],
        item["start"],
        item["stop"],
        item["fingerprint"],
        tuple(Span(*span) for span in item["spans"]),
        item.get("seed"),
        orjson.dumps(item["dropped"]) if item.get("dropped") else b"",
    )
