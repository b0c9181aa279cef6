"""Files of a committed batch that are not what its receipt says: lost or changed after the commit."""

from collections.abc import Iterable, Iterator
from typing import Final

from tasks.dataset.shard_reader import decode_provenance, decode_rejected, decode_shard
from tasks.errors import DataError
from tasks.ledger.ledger import Ledger
from tasks.ledger.receipt import FOLDERS, Receipt
from tasks.rows.hash_set import HashSet
from tasks.rows.records import Completion
from tasks.store.contract import MissingError, ObjectStore, sha256_hex

LOST: Final = {"provenance": "lost"}
"""Facts of a row that is intact itself, but whose provenance file is not."""

Row = tuple[str, Completion]
"""Verdict code and completion of a committed row."""


def damaged_files(store: ObjectStore, receipt: Receipt) -> dict[str, str]:
    """Read every file of a receipt; return `missing` or `changed` by kind, of those that are not intact."""
    found = {}
    for kind, entry in receipt.files().items():
        try:
            data = store.get(entry.key)
        except MissingError:
            found[kind] = "missing"
        except DataError:
            found[kind] = "changed"
        else:
            if (len(data), sha256_hex(data)) != (entry.bytes, entry.sha256):
                found[kind] = "changed"
    return found


class ListedFiles:
    """The files that a store lists, to tell lost ones from listings alone."""

    def __init__(self, store: ObjectStore) -> None:
        self._known = HashSet(
            (info.key, info.size) for folder in FOLDERS.values() for info in store.list(f"{folder}/")
        )

    def lacks(self, receipt: Receipt) -> list[str]:
        """Return the kinds of a receipt's files that are absent or of another size."""
        return [
            kind for kind, entry in receipt.files().items() if (entry.key, entry.bytes) not in self._known
        ]


def intact_rows(ledger: Ledger, store: ObjectStore, receipt: Receipt, damage: Iterable[str]) -> list[Row]:
    """Return the rows of a batch that can be read back, from this generation or the same row of earlier ones.

    Args:
        ledger: the job's.
        store: the job's own prefix.
        receipt: of the generation that counts.
        damage: kinds of its files that are not intact, see `damaged_files`.
    """
    damage = frozenset(damage)
    facts = {} if "provenance" in damage else _facts(store, receipt)
    rows = list(_rows(store, receipt, facts, damage))
    if not damage & {"shard", "rejected"}:
        return rows
    there = {row.row_id for _, row in rows}
    wanted = {row_id: fact["rid"] for row_id, fact in facts.items() if row_id not in there and fact["rid"]}
    for generation in range(receipt.generation - 1, -1, -1):
        older = ledger.receipt(receipt.batch, generation)
        broken = frozenset(damaged_files(store, older))
        if "provenance" in broken:
            continue
        for code, row in _rows(store, older, _facts(store, older), broken):
            if row.row_id in wanted and row.facts["rid"] == wanted[row.row_id]:  # the very same answer
                del wanted[row.row_id]
                rows.append((code, row))
    return rows


def _facts(store: ObjectStore, receipt: Receipt) -> dict[str, dict[str, object]]:
    facts = {}
    for row in decode_provenance(store.get(receipt.provenance.key), receipt.provenance.key):
        rest = row.pop("facts")
        del row["accepted"]
        facts[row.pop("row_id")] = rest | row
    return facts


def _rows(
    store: ObjectStore, receipt: Receipt, facts: dict[str, dict[str, object]], damage: frozenset[str]
) -> Iterator[Row]:
    for kind, decode in (("shard", decode_shard), ("rejected", decode_rejected)):
        entry = receipt.files().get(kind)
        if entry is not None and kind not in damage:
            rows = decode(store.get(entry.key), entry.key)
            for index, row_id in enumerate(rows.row_ids):
                yield rows.verdicts[index], rows.completion(index, facts.get(row_id, LOST))
