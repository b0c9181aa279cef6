"""Rows into numbered files of bounded size, per split; what an earlier run finished is not written again."""

from collections.abc import Callable

from tasks.export.files import ExportRow, Part, Progress, RowWriter, check_same
from tasks.store.contract import ObjectStore
from tasks.store.new_object import NewObject


class PartFiles:
    """The numbered files of one split.

    Args:
        out: where the export goes.
        split: its name, and that of its folder.
        pattern: of file names.
        limit: ids per file; a file holds at least one row.
        progress: what is finished.
        start: opens a writer on a new file.
    """

    def __init__(
        self,
        out: ObjectStore,
        split: str,
        pattern: str,
        limit: int,
        progress: Progress,
        start: Callable[[NewObject], RowWriter],
    ) -> None:
        self._out = out
        self._split = split
        self._pattern = pattern
        self._limit = limit
        self._progress = progress
        self._start = start
        self._open: tuple[NewObject, RowWriter] | None = None
        self._counts = [0, 0, 0]
        self.parts: list[Part] = []

    @property
    def _name(self) -> str:
        return f"{self._split}/{self._pattern.format(len(self.parts))}"

    def add(self, row: ExportRow) -> None:
        """Write a row, into the next file when this one would grow too large."""
        size = row.input_ids.size
        if self._counts[0] and self._counts[1] + size > self._limit:
            self.close()
        if self._open is None and self._name not in self._progress.finished:
            file = self._out.create(self._name)
            self._open = (file, self._start(file))
        if self._open is not None:
            self._open[1].add(row)
        self._counts[0] += 1
        self._counts[1] += size
        self._counts[2] += int(row.loss_mask.sum())

    def close(self) -> None:
        """Finish the file at hand, if there is one."""
        if not self._counts[0]:
            return
        rows, tokens, supervised = self._counts
        if self._open is None:
            part = self._progress.finished[self._name]
            check_same(part, rows, tokens, supervised)
        else:
            file, writer = self._open
            writer.finish()
            part = Part(self._name, self._split, file.publish(), file.size, rows, tokens, supervised)
            self._progress.add(part)
        self.parts.append(part)
        self._open, self._counts = None, [0, 0, 0]

    def discard(self) -> None:
        """Give up the file at hand; those that are finished stay."""
        if self._open is not None:
            self._open[0].discard()
            self._open = None
