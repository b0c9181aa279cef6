"""The dataset card: `README.md` with the metadata that the Hugging Face hub reads (pure)."""

from collections.abc import Mapping
from typing import Any, Final

import yaml

from tasks.report.templates import template

MOST_SHARDS: Final = 1000
"""Above it the card lists no files: superseded shards may lie beside, so a wildcard would double rows."""

SIZES: Final = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


def dataset_card(index: Mapping[str, Any], sentence: str, warning: str) -> str:
    """Return the card of a dataset.

    Args:
        index: `dataset.json`.
        sentence: what text would have done to a sample.
        warning: about the share of the answer, "" for none.
    """
    shards = [shard["key"] for shard in index["shards"]]
    rows = index["rows"]["accepted"]
    head: dict[str, Any] = {
        "pretty_name": index["job_id"],
        "task_categories": ["text-generation"],
        "tags": ["token-ids", "synthetic", "rawseq"],
        "size_categories": [next((name for most, name in SIZES if rows < most), "n>1M")],
    }
    if 0 < len(shards) <= MOST_SHARDS:
        head["configs"] = [{"config_name": "default", "data_files": [{"split": "train", "path": shards}]}]
    front = yaml.safe_dump(head, sort_keys=False, allow_unicode=True)
    body = template("card.md.jinja").render(index=index, sentence=sentence, warning=warning)
    return f"---\n{front}---\n\n{body}"
