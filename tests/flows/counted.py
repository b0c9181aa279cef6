"""What a finished store holds and what a stand-in has begun, counted. Not a test module."""

import json
import urllib.request
from collections import Counter

from deployments.standin.counters import prompt_key
from tasks.dataset.shard_reader import decode_rejected, decode_shard
from tasks.ledger.ledger import Ledger
from tasks.store.contract import ObjectStore


def _counters(url: str) -> dict[str, object]:
    with urllib.request.urlopen(f"{url}/standin/counters") as answer:
        found: dict[str, object] = json.load(answer)
        return found


def started_generations(url: str) -> int:
    """Return how many generations the server has begun."""
    count = _counters(url)["generations_started"]
    assert isinstance(count, int)
    return count


def prompts_started(url: str) -> Counter[str]:
    """Return how often the server has begun a generation for each prompt."""
    found = _counters(url)["prompts_started"]
    assert isinstance(found, dict)
    return Counter(found)


def shard_names(store: ObjectStore) -> list[str]:
    """Return the sha256 names of the shards that the counting receipts list, in batch order."""
    receipts = Ledger(store, _job_id(store)).receipts()
    return [receipt.shard.sha256 for _, receipt in sorted(receipts.items()) if receipt.shard is not None]


def rows_in(store: ObjectStore) -> dict[str, str]:
    """Return the key of the prompt of every row of the counting receipts, by row id.

    Raises:
        AssertionError: a row is there twice.
    """
    found: dict[str, str] = {}
    for receipt in Ledger(store, _job_id(store)).receipts().values():
        for entry, decode in ((receipt.shard, decode_shard), (receipt.rejected, decode_rejected)):
            rows = decode(store.get(entry.key)) if entry is not None else None
            for index, row_id in enumerate(rows.row_ids if rows else ()):
                assert rows is not None
                assert row_id not in found, f"{row_id} twice"
                found[row_id] = prompt_key(rows.inputs(index).tolist())
    return found


def _job_id(store: ObjectStore) -> str:
    return str(json.loads(store.get("job.json"))["job_id"])
