"""The files of an export: each appears whole, its digest on record; a killed export goes on behind them."""

from typing import Protocol

import attrs
import orjson

from tasks.errors import DataError
from tasks.records import Ids
from tasks.storage.store import MissingError, ObjectStore, digest_of
from tasks.storage.trainers.example import Example
from tasks.storage.trainers.masks import Mask

PROGRESS = "progress.jsonl"


@attrs.frozen(slots=True, eq=False)
class ExportRow:
    """One sequence as it is written.

    Args:
        example: where it comes from; its ids may be longer than these.
        input_ids: int32[n].
        loss_mask: bool[n].
    """

    example: Example
    input_ids: Ids
    loss_mask: Mask


class RowWriter(Protocol):
    """Writes rows into one open file."""

    def add(self, row: ExportRow) -> None:
        """Write a row, perhaps later."""

    def finish(self) -> None:
        """Write what is left; the file stays open."""


@attrs.frozen(slots=True)
class Part:
    """One finished file of an export."""

    name: str
    split: str
    sha256: str
    bytes: int
    rows: int
    tokens: int
    supervised: int


class Progress:
    """The files that an earlier run of the same export finished, and those of this one.

    Args:
        out: where the export goes.
    """

    def __init__(self, out: ObjectStore) -> None:
        self._out = out
        self.finished: dict[str, Part] = {}
        for line in self._read().splitlines():
            try:
                part = Part(**orjson.loads(line))
            except (orjson.JSONDecodeError, TypeError):
                break  # not a line of ours: what it named is written again
            if digest_of(out, part.name) == (part.bytes, part.sha256):
                self.finished[part.name] = part

    def _read(self) -> bytes:
        try:
            return self._out.get(PROGRESS)
        except MissingError:
            return b""

    def add(self, part: Part) -> None:
        """Put a file on record, durably."""
        self.finished[part.name] = part
        lines = [orjson.dumps(attrs.asdict(each)) + b"\n" for each in self.finished.values()]
        self._out.put(PROGRESS, b"".join(lines))

    def remove(self) -> None:
        """Delete the record: the manifest holds it now."""
        self._out.delete(PROGRESS)


def check_same(part: Part, rows: int, tokens: int, supervised: int) -> None:
    """Check that a file of an earlier run holds what this run would have written.

    Raises:
        DataError: it does not: the store or the program changed in between.
    """
    found, now = (part.rows, part.tokens, part.supervised), (rows, tokens, supervised)
    if found != now:
        raise DataError(
            f"{part.name}: expected the rows, ids and supervised ids {now} of this export, found {found} on "
            f"record: export to another place"
        )
