"""The receipt: what commits a batch. Frozen shapes, their JSON, and totals (pure)."""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Self

import attrs
import orjson

from tasks.errors import DataError
from tasks.job.spec import SCHEMA_VERSION
from tasks.ledger.plan import check_schema
from tasks.rows.shelf import Shelved
from tasks.store.contract import canonical

KINDS: Final = ("shard", "rejected", "provenance", "frequencies")
FOLDERS: Final = {
    "shard": "shards",
    "rejected": "rejected",
    "provenance": "provenance",
    "frequencies": "frequencies",
}


@attrs.frozen(slots=True)
class FileEntry:
    """One file of a batch: where it lies and what it must be."""

    key: str
    sha256: str
    bytes: int
    rows: int
    tokens: int

    @classmethod
    def of(cls, data: Any, where: str) -> Self:
        """Read it from a receipt's JSON.

        Raises:
            DataError: a field is missing, of the wrong type, or the key is not named by the digest.
        """
        try:
            entry = cls(**data)
            numbers = (entry.bytes, entry.rows, entry.tokens)
            good = all(type(number) is int and number >= 0 for number in numbers)
            if not good or not entry.key.endswith(f"/{entry.sha256}.parquet"):
                raise DataError(f"{where}: expected key, sha256, bytes, rows, tokens that agree, got {data}")
        except (TypeError, AttributeError) as error:
            raise DataError(f"{where}: expected a file entry, got {data!r}") from error
        return entry


@attrs.frozen(slots=True, eq=False)
class Receipt:
    """Commits generation `generation` of a batch; fields as in the schema page.

    `reason` says what a later generation was made for; "" of the first, and then left out of the JSON.
    """

    job_id: str
    batch: int
    generation: int
    start: int
    stop: int
    fingerprint: str
    shard: FileEntry | None
    rejected: FileEntry | None
    provenance: FileEntry
    frequencies: FileEntry | None
    rows: Mapping[str, Any]
    tokens: Mapping[str, int]
    resolved_sha256: str
    template_sha256: str
    reason: str = ""

    @property
    def key(self) -> str:
        """Its key in the store."""
        return receipt_key(self.batch, self.generation)

    def files(self) -> dict[str, FileEntry]:
        """Return its files by kind, without those that there are none of."""
        found = {kind: getattr(self, kind) for kind in KINDS}
        return {kind: entry for kind, entry in found.items() if entry is not None}

    def as_json(self) -> dict[str, Any]:
        """Return the object that is stored."""
        data = {"schema": SCHEMA_VERSION} | attrs.asdict(self)
        if not self.reason:
            del data["reason"]
        return data

    @classmethod
    def of(cls, data: Any, where: str) -> Self:
        """Read a receipt's JSON.

        Raises:
            DataError: not a receipt, a higher schema, or counts that contradict each other.
        """
        check_schema(data, where)
        fields = {key: value for key, value in data.items() if key != "schema"}
        try:
            for kind in KINDS:
                if fields[kind] is not None:
                    fields[kind] = FileEntry.of(fields[kind], f"{where}: {kind}")
            receipt = cls(**fields)
            receipt._check(where)
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{where}: expected a receipt of schema {SCHEMA_VERSION}, got {error!r}"
            ) from error
        return receipt

    def _check(self, where: str) -> None:
        rows = self.rows
        if where != self.key:
            raise DataError(f"{where}: expected the receipt of that name, got {self.key}")
        if not (
            rows["total"] == rows["accepted"] + rows["rejected"] == sum(rows["by_verdict"].values())
            and min(rows["total"], rows["accepted"], rows["rejected"], *rows["by_verdict"].values()) >= 0
        ):
            raise DataError(
                f"{where}: expected total = accepted + rejected = sum of verdicts, got {dict(rows)}"
            )
        if (self.shard is None) != (rows["accepted"] == 0) or (self.rejected is None) != (
            rows["rejected"] == 0
        ):
            raise DataError(f"{where}: expected a file exactly where there are rows, got {dict(rows)}")
        if self.provenance is None or self.tokens["prompt"] < 0 or self.tokens["output"] < 0:
            raise DataError(f"{where}: expected provenance and token counts, got {dict(self.tokens)}")


def unit_name(batch: int, generation: int) -> str:
    """Return the name of the work on a generation of a batch: of its lease, its journal, their copies."""
    return f"{batch:06d}.g{generation}" if generation else f"{batch:06d}"


def parse_unit(name: str) -> tuple[int, int] | None:
    """Return batch and generation of a unit's name; None if it is none."""
    head, _, number = name.partition(".g")
    if not head.isdecimal() or not (number or "0").isdecimal():
        return None
    place = int(head), int(number or 0)
    return place if unit_name(*place) == name else None


def receipt_key(batch: int, generation: int) -> str:
    """Return the key of a batch's receipt."""
    return f"receipts/{batch:06d}.g{generation}.json"


def parse_receipt_key(key: str) -> tuple[int, int] | None:
    """Return batch and generation of a receipt's key; None if it is none."""
    head, _, rest = key.removeprefix("receipts/").partition(".g")
    number = rest.removesuffix(".json")
    if not (head.isdecimal() and number.isdecimal()) or receipt_key(int(head), int(number)) != key:
        return None
    return int(head), int(number)


def receipt_bytes(receipt: Receipt) -> bytes:
    """Return the receipt's canonical JSON: equal receipts have equal bytes."""
    return canonical(receipt.as_json())


class Receipts(Mapping[int, Receipt]):
    """Receipts by batch, in a temporary file; each access reads the receipt anew.

    Args:
        receipts: in batch order.
    """

    def __init__(self, receipts: Iterable[Receipt]) -> None:
        self._batches = array("Q")
        self._shelved = Shelved().with_more(map(self._noted, receipts))

    def _noted(self, receipt: Receipt) -> bytes:
        self._batches.append(receipt.batch)
        return receipt_bytes(receipt)

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[int]:
        return iter(self._batches)

    def __getitem__(self, batch: int) -> Receipt:
        place = bisect_left(self._batches, batch)
        if place == len(self) or self._batches[place] != batch:
            raise KeyError(batch)
        data = orjson.loads(self._shelved.record(place))
        return Receipt.of(data, receipt_key(data["batch"], data["generation"]))


@attrs.frozen(slots=True, eq=False)
class Totals:
    """Sums over receipts: `rows` and `tokens` as in a receipt."""

    batches: int
    rows: dict[str, Any]
    tokens: dict[str, int]


def fold(receipts: Iterable[Receipt]) -> Totals:
    """Add up receipts, one at a time."""
    batches = 0
    rows: Counter[str] = Counter(total=0, accepted=0, rejected=0)
    tokens: Counter[str] = Counter(prompt=0, output=0)
    verdicts: Counter[str] = Counter()
    for receipt in receipts:
        batches += 1
        rows.update({name: receipt.rows[name] for name in ("total", "accepted", "rejected")})
        tokens.update(receipt.tokens)
        verdicts.update(receipt.rows["by_verdict"])
    return Totals(batches, {**rows, "by_verdict": dict(sorted(verdicts.items()))}, dict(tokens))
