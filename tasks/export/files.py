"""The files of an export: each appears whole, its digest on record; a killed export goes on behind them."""

import contextlib
from typing import Final, Protocol

import attrs
import orjson

from tasks.errors import DataError
from tasks.export.example import Example
from tasks.export.masks import Mask
from tasks.rows.records import Ids
from tasks.store.contract import MissingError, ObjectStore, digest_of

PROGRESS: Final = "progress-"


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
    """The files that an earlier run of the same export finished, and those of this one: an object each.

    Args:
        out: where the export goes.
    """

    def __init__(self, out: ObjectStore) -> None:
        self._out = out
        self.finished: dict[str, Part] = {}
        for info in out.list(PROGRESS):
            with contextlib.suppress(MissingError, orjson.JSONDecodeError, TypeError):
                part = Part(**orjson.loads(out.get(info.key)))
                if digest_of(out, part.name) == (part.bytes, part.sha256):
                    self.finished[part.name] = part  # else it is written again

    def add(self, part: Part) -> None:
        """Put a file on record, durably."""
        self.finished[part.name] = part
        self._out.put(_record(part), orjson.dumps(attrs.asdict(part)))

    def remove(self) -> None:
        """Delete the records: the manifest holds them now."""
        for part in self.finished.values():
            self._out.delete(_record(part))


def _record(part: Part) -> str:
    return f"{PROGRESS}{part.name.replace('/', '-')}.json"


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
