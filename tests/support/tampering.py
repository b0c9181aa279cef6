"""Ways to change a finished job, as somebody would who can write to its store."""

import io
from collections import Counter
from collections.abc import Callable
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.store.contract import ObjectStore, canonical, sha256_hex

RECEIPT = "receipts/000001.g0.json"


class Tampering:
    """Ways to change a finished job, as somebody would who can write to the store."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store

    def json(self, key: str) -> dict[str, Any]:
        """Return an object's JSON."""
        value: dict[str, Any] = orjson.loads(self.store.get(key))
        return value

    def edit(self, key: str, change: Callable[[dict[str, Any]], object]) -> None:
        """Change a JSON object in place and write it back."""
        value = self.json(key)
        change(value)
        self.store.put(key, canonical(value))

    def file(self, kind: str = "shard", receipt: str = RECEIPT) -> str:
        """Return the key of a batch's file."""
        return str(self.json(receipt)[kind]["key"])

    def flip(self, kind: str, place: float) -> None:
        """Flip a bit of a file, at this share of its length."""
        key = self.file(kind)
        data = bytearray(self.store.get(key))
        data[int(len(data) * place)] ^= 1
        self.store.put(key, bytes(data))

    def forge(
        self,
        change: Callable[[list[dict[str, Any]]], object],
        kind: str = "shard",
        receipt: str = RECEIPT,
        *,
        fit: bool = True,
    ) -> None:
        """Rewrite a file's rows; digest, size and (with `fit`) counts of the receipt are made to fit."""
        value = self.json(receipt)
        table = pq.read_table(io.BytesIO(self.store.get(value[kind]["key"])))
        rows = table.to_pylist()
        change(rows)
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows, table.schema), sink)
        data = sink.getvalue()
        digest = sha256_hex(data)
        folder = value[kind]["key"].split("/")[0]
        value[kind] |= {"key": f"{folder}/{digest}.parquet", "sha256": digest, "bytes": len(data)}
        if fit and kind in ("shard", "rejected"):
            self.fit(value, kind, rows)
        self.store.put(value[kind]["key"], data)
        self.store.put(receipt, canonical(value))

    @staticmethod
    def fit(value: dict[str, Any], kind: str, rows: list[dict[str, Any]]) -> None:
        """Make a receipt's counts say what a rewritten file holds."""
        ids = sum(len(row["input_ids"]) for row in rows)
        value[kind] |= {"rows": len(rows), "tokens": ids}
        if kind == "shard":
            prompt = sum(row["prompt_length"] for row in rows)
            value["tokens"] = {"prompt": prompt, "output": ids - prompt}
            value["rows"]["accepted"] = len(rows)
        else:
            value["rows"]["rejected"] = len(rows)
        value["rows"]["total"] = value["rows"]["accepted"] + value["rows"]["rejected"]
        codes = value["rows"]["by_verdict"]
        others = sum(count for code, count in codes.items() if code != "complete")
        codes["complete"] = value["rows"]["total"] - others


def swap_files(t: Tampering) -> None:
    """Let two receipts point at each other's shard."""
    one, two = t.json("receipts/000000.g0.json"), t.json(RECEIPT)
    t.edit("receipts/000000.g0.json", lambda value: value.update(shard=two["shard"]))
    t.edit(RECEIPT, lambda value: value.update(shard=one["shard"]))


def swap_bytes(t: Tampering) -> None:
    """Exchange the bytes of two shards under their names."""
    one, two = t.file("shard", "receipts/000000.g0.json"), t.file("shard")
    first, second = t.store.get(one), t.store.get(two)
    t.store.put(one, second)
    t.store.put(two, first)


def copy_row_from_other_batch(t: Tampering) -> None:
    """Put a row of batch 0 into batch 1 in place of one of its own."""
    table = pq.read_table(io.BytesIO(t.store.get(t.file("shard", "receipts/000000.g0.json"))))
    stolen = table.to_pylist()[0]
    t.forge(lambda rows: rows.__setitem__(0, stolen))


def shift_boundary(rows: list[dict[str, Any]]) -> None:
    """Move one id of a prompt into its output."""
    rows[0]["prompt_length"] -= 1


def shift_segment(rows: list[dict[str, Any]]) -> None:
    """Move the line between two segments, so that they still tile."""
    rows[0]["segments"][1]["stop"] -= 1
    rows[0]["segments"][2]["start"] -= 1


def gap_in_segments(rows: list[dict[str, Any]]) -> None:
    """Leave an id outside every segment."""
    rows[0]["segments"][1]["stop"] -= 1


def change_id(rows: list[dict[str, Any]]) -> None:
    """Change the last id, the one that ended the row."""
    rows[0]["input_ids"][-1] = 5


def foreign_id(rows: list[dict[str, Any]]) -> None:
    """Put an id in that the vocabulary does not have."""
    rows[0]["input_ids"][1] = 1000


def accept_rejected(t: Tampering) -> None:
    """Take a rejected row into the shard as it is."""
    rejected = pq.read_table(io.BytesIO(t.store.get(t.file("rejected")))).to_pylist()[0]
    row = {key: value for key, value in rejected.items() if key not in ("verdict_offset", "detail", "reply")}
    t.forge(lambda rows: rows.append(row))


def plant(t: Tampering, row_id: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Change one row of batch 1 and make everything else fit: receipt, frequencies, provenance."""
    changed: list[dict[str, Any]] = []

    def edit(rows: list[dict[str, Any]]) -> None:
        change(next(row for row in rows if row["row_id"] == row_id))
        changed.extend(rows)

    t.forge(edit)
    outputs = {row["row_id"]: row["input_ids"][row["prompt_length"] :] for row in changed}
    counts = sorted(Counter(token for ids in outputs.values() for token in ids).items())
    t.forge(
        lambda rows: rows.__setitem__(slice(None), [{"id": i, "count": n} for i, n in counts]), "frequencies"
    )

    def recount(rows: list[dict[str, Any]]) -> None:
        row = next(row for row in rows if row["row_id"] == row_id)
        facts = orjson.loads(row["facts"]) | {"completion_tokens": len(outputs[row_id])}
        row["facts"] = orjson.dumps(facts).decode()

    t.forge(recount, "provenance")
