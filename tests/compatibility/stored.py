"""A store that commit 7993c23 wrote, copied to where a test may change it. Not a test module."""

import io
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs
import pyarrow.parquet as pq

from deployments.local.presets import STANDIN_MODEL
from deployments.local.seaweed import Seaweed
from tasks.job.spec import StoreSpec
from tasks.store.contract import ObjectStore
from tasks.store.opening import open_store

DATA = Path(__file__).resolve().parents[1] / "data" / "stores_7993c23"
KEPT = ("job.json", "plan/", "receipts/", "shards/", "rejected/", "provenance/", "frequencies/", "servers/")
"""Keys of objects that are written once."""


@attrs.frozen(slots=True)
class Stored:
    """A copied store.

    Args:
        folder: where its commands run: with job file, prompts, tokenizer and journals.
        argument: STORE of its verbs.
        objects: the job's own prefix.
        env: variables by which commands reach it.
        expected: what 7993c23 said of it.
    """

    folder: Path
    argument: str
    objects: ObjectStore
    env: Mapping[str, str]
    expected: Mapping[str, Any]

    def kept(self) -> dict[str, bytes]:
        """Return the objects that are written once, by key."""
        return {i.key: self.objects.get(i.key) for i in self.objects.list("") if i.key.startswith(KEPT)}

    def receipts(self) -> list[dict[str, Any]]:
        """Return the receipts that count, in batch order."""
        found: dict[int, dict[str, Any]] = {}
        for key in sorted(info.key for info in self.objects.list("receipts/")):
            receipt = json.loads(self.objects.get(key))
            before = found.get(receipt["batch"])
            if before is None or before["generation"] < receipt["generation"]:
                found[receipt["batch"]] = receipt
        return [receipt for _, receipt in sorted(found.items())]

    def shards(self) -> list[str]:
        """Return the sha256 of the shards that count, in batch order."""
        return [receipt["shard"]["sha256"] for receipt in self.receipts() if receipt["shard"]]

    def rows(self, kind: str = "shard") -> list[dict[str, Any]]:
        """Return the rows of one kind of file of the receipts that count, as Parquet has them."""
        files = [receipt[kind]["key"] for receipt in self.receipts() if receipt[kind]]
        return [row for key in files for row in pq.read_table(io.BytesIO(self.objects.get(key))).to_pylist()]

    def accepted(self) -> dict[str, list[int]]:
        """Return the ids of the accepted rows, by row id."""
        return ids_of(self.rows())


def ids_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Return the ids of rows by row id."""
    return {row["row_id"]: list(row["input_ids"]) for row in rows}


def placed(name: str, folder: Path) -> Stored:
    """Copy a store in the folder layout, with all that its commands need, below `folder`."""
    return _opened(name, _copied(name, folder), StoreSpec(uri=str(folder / name / "store")), None)


def uploaded(name: str, folder: Path, s3: Seaweed) -> Stored:
    """Put the objects of a store in the S3 layout into its bucket, anew, and the rest below `folder`."""
    spec = StoreSpec(uri=f"s3://{s3.bucket}/{name}", endpoint_url=s3.http_url, region="us-east-1")
    stored = _opened(name, _copied(name, folder), spec, s3)
    for info in list(stored.objects.list("")):
        stored.objects.delete(info.key)
    root = DATA / name / "store" / stored.expected["job_id"]
    for path in sorted(root.rglob("*")):
        if path.is_file():
            stored.objects.put(path.relative_to(root).as_posix(), path.read_bytes())
    return stored


def _copied(name: str, folder: Path) -> Path:
    copy = folder / name
    shutil.copytree(DATA / name, copy)
    (copy / "model").symlink_to(os.path.relpath(STANDIN_MODEL, copy.resolve()))
    return copy


def _opened(name: str, folder: Path, spec: StoreSpec, s3: Seaweed | None) -> Stored:
    expected = json.loads((DATA / name / "expected.json").read_bytes())
    objects = open_store(spec, expected["job_id"], s3.credentials if s3 else None)
    if s3 is None:
        return Stored(folder, "store", objects, {}, expected)
    shutil.rmtree(folder / "store")
    return Stored(folder, spec.uri, objects, s3.environment(), expected)
