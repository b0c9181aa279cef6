"""Stores → files that a trainer reads, in a folder or on S3; killed and run again: the same bytes."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import attrs

from tasks.errors import DataError, JobError, SurroundingsError
from tasks.export.example import Example
from tasks.export.files import ExportRow, Progress, RowWriter
from tasks.export.formats import FORMATS
from tasks.export.frequencies import Frequencies
from tasks.export.jsonl import JsonlWriter
from tasks.export.lengths import cut
from tasks.export.manifest import finish, finished_report, pinned_request
from tasks.export.masks import at_boundary, loss_mask, prefilled_opener
from tasks.export.options import ExportOptions
from tasks.export.order import SPLITS, Seen, Visit, comes, key_of, split_of, visits
from tasks.export.parts import PartFiles
from tasks.export.pinned import PinnedBatch, PinnedStore, one_vocabulary, read_examples
from tasks.export.tally import Tally
from tasks.store.contract import ObjectStore
from tasks.store.disk import disk_advice, take_folder
from tasks.store.folder import FolderStore
from tasks.store.new_object import NewObject

_ABANDONED_SECONDS: Final = 86_400.0
"""An upload that is a day old has no living exporter: no file takes so long. In a folder the lock says so."""


class Teller(Protocol):
    """Makes rows into text, for a format that wants it."""

    def enter(self, store: int, batch: PinnedBatch) -> None:
        """Go to a batch of a store; the rows that follow are of it."""

    def line(self, row: ExportRow) -> bytes:
        """Return the row as one line of JSON."""


def export(
    stores: Sequence[ObjectStore],
    weights: Sequence[float],
    options: ExportOptions,
    out: ObjectStore,
    teller: Teller | None = None,
    say: Callable[[str], None] = lambda line: None,
    stopped: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Write rows of `stores` into `out` and return what `rawseq export --json` prints.

    An unfinished export of the same options goes on with the receipts that it began with; a finished one is
    only checked against its digests. Files appear as they are finished, the manifest last.

    Args:
        stores: jobs' own prefixes; none needs to be complete.
        weights: of each store.
        options: how.
        out: empty, or of the same export. A folder takes one process at a time, S3 more: of the same bytes.
        teller: for `specforge-conversations`.
        say: takes one line for a person at a time.
        stopped: asked before each sequence; True gives the rest up, what is finished stays.

    Raises:
        JobError: `out` holds something else, or a store has no receipt or another tokenizer.
        DataError: a shard is not what its receipt says.
    """
    pinned = [PinnedStore.pin(store, weight) for store, weight in zip(stores, weights, strict=True)]
    _check_vocabulary(pinned, options)
    with _only_here(out):
        if (report := finished_report(out, pinned, options)) is not None:
            return report
        pinned = pinned_request(out, pinned, options, say)
        try:
            return _Export(stores, pinned, options, out, teller, say, stopped).run()
        except DataError:
            if (report := finished_report(out, pinned, options)) is None:
                raise
            return report  # another process was faster, and took the records of progress away


def _check_vocabulary(stores: Sequence[PinnedStore], options: ExportOptions) -> None:
    one_vocabulary(stores)
    size, asked = stores[0].vocabulary_size, options.draft_vocab
    if asked is not None and size is not None and asked > size:
        raise JobError(f"draft_vocab: expected at most the target's {size} ids, got {asked}")


@contextmanager
def _only_here(out: ObjectStore) -> Iterator[None]:
    if not isinstance(out, FolderStore):
        yield
        return
    lock = _taken(out.folder)
    try:
        yield
    finally:
        os.close(lock)


def _taken(folder: Path) -> int:
    try:
        return take_folder(folder, "that exports into this folder, got another")
    except OSError as error:
        raise SurroundingsError(f"{folder}: {disk_advice(error)}") from None


@attrs.define(slots=True)
class _Export:
    stores: Sequence[ObjectStore]
    pinned: Sequence[PinnedStore]
    options: ExportOptions
    out: ObjectStore
    teller: Teller | None
    say: Callable[[str], None]
    stopped: Callable[[], bool]
    tally: Tally = attrs.field(factory=Tally)
    seen: Seen = attrs.field(factory=Seen)
    round: int = 0

    def run(self) -> dict[str, Any]:
        """Read everything and write it."""
        self.out.abort_leftovers(0.0 if isinstance(self.out, FolderStore) else _ABANDONED_SECONDS)
        progress = Progress(self.out)
        if progress.finished:
            self.say(f"{len(progress.finished)} files of an earlier run stand")
        files = self._files(progress)
        frequencies = Frequencies(self.pinned[0].vocabulary_size)
        try:
            for visit in visits([len(store.batches) for store in self.pinned], self._weights):
                for example in self._examples(visit):
                    if self.stopped():
                        raise CancelledError
                    self._take(visit, example, files, frequencies)
            for split in files.values():
                split.close()
        except BaseException:
            for split in files.values():
                split.discard()
            raise
        parts = [part for split in files.values() for part in split.parts]
        report = finish(self.out, self.pinned, self.options, parts, self.tally, frequencies)
        progress.remove()
        return report

    @property
    def _weights(self) -> list[float]:
        return [store.weight for store in self.pinned]

    def _files(self, progress: Progress) -> dict[str, PartFiles]:
        kind = FORMATS[self.options.to]
        limit = self.options.file_tokens or kind.file_tokens
        start = kind.open
        if start is None:
            return {}
        return {
            split: PartFiles(self.out, split, kind.pattern, limit, progress, self._starter(start))
            for split in SPLITS
        }

    def _starter(self, start: Callable[[NewObject], RowWriter]) -> Callable[[NewObject], RowWriter]:
        teller = self.teller
        return start if teller is None else lambda file: JsonlWriter(file, teller.line)

    def _examples(self, visit: Visit) -> Any:
        if visit.round != self.round:
            self.round, self.seen = visit.round, Seen()
        batch: PinnedBatch = self.pinned[visit.store].batches[visit.place]
        if self.teller is not None:
            self.teller.enter(visit.store, batch)
        include = frozenset(self.options.include)
        return read_examples(self.stores[visit.store], batch, include, self.options.merge_turns)

    def _take(
        self, visit: Visit, example: Example, files: dict[str, PartFiles], frequencies: Frequencies
    ) -> None:
        """Decide on one sequence, and count it where it belongs."""
        tally, options, store = self.tally, self.options, self.pinned[visit.store]
        tally.read += 1
        tally.turns_merged += len(example.row_ids) - 1
        if not comes(store.weight, visit.round, options.seed, example):
            tally.left_out_by_weight += 1
            return
        if options.dedup != "none" and not self.seen.add(key_of(example, options.dedup)):
            tally.repeated += 1
            return
        found = _row(example, store, options, tally)
        if isinstance(found, str):
            tally.refuse(found, example)
            return
        row, learnt = found
        split = split_of(example, options.seed, options.eval_share)
        if split == "train":
            frequencies.add(row.input_ids, learnt)
        tally.written[split] += 1
        tally.tokens[split] += row.input_ids.size
        tally.supervised[split] += int(row.loss_mask.sum())
        if files:
            files[split].add(row)


def _row(
    example: Example, store: PinnedStore, options: ExportOptions, tally: Tally
) -> tuple[ExportRow, Any] | str:
    """Return a sequence as it is written with bool[n] of the ids that are learnt, or why it is refused."""
    size = store.vocabulary_size
    if example.input_ids.size and size is not None and int(example.input_ids.max()) >= size:
        return "id_out_of_vocabulary"
    prefilled = 0
    if options.learn_prefill:
        grammar = store.resolved.get("grammar", {})
        prompt = example.input_ids[: example.prompt_length]
        opener = tuple(grammar.get("opener_ids", ()))
        prefilled = prefilled_opener(prompt, grammar.get("tails", ()), opener)
    mask = loss_mask(example, options.mask, prefilled)
    if not mask.any() or mask.all():
        return "mask_full" if mask.size and mask.all() else "mask_empty"
    tally.whole_supervised += int(mask.sum())
    for cost in tally.lengths:
        cost.add(mask)
    kept = cut(example.input_ids, mask, options.max_length, options.over_length)
    if kept is None:
        return "over_length"
    ids, learnt = kept
    moved = at_boundary(options.boundary, learnt, example.made[: ids.size])
    if not moved.any():
        return "mask_empty"
    if ids.size < mask.size:
        tally.cut += 1
        tally.supervised_cut += int(mask[ids.size :].sum())
    return ExportRow(example, ids, moved), learnt
