"""Jobs as tests write them, and what a `rawseq` command left."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import yaml

from deployments.local.presets import STANDIN_MODEL
from tasks.job.spec import StoreSpec
from tasks.store.contract import ObjectStore
from tasks.store.opening import find_job


@attrs.frozen(slots=True)
class Ran:
    """What one command left: exit status, JSON objects of stdout, text of stderr."""

    status: int
    objects: list[dict[str, Any]]
    stderr: str

    @property
    def answer(self) -> dict[str, Any]:
        """The last JSON object."""
        return self.objects[-1]


Rawseq = Callable[..., Ran]


def write_prompts(path: Path, count: int, first: int = 0) -> Path:
    """Write `count` records numbered from `first` on, every third with two turns."""
    with path.open("w") as file:
        for number in range(first, first + count):
            record: dict[str, Any] = {"id": f"p{number}", "topic": "sums"}
            if number % 3 == 2:
                record["turns"] = [f"What is {number}+2?", "And one more?"]
            else:
                record["prompt"] = f"What is {number}+{number % 7}?"
            file.write(json.dumps(record) + "\n")
    return path


def write_job(path: Path, url: str, file: Path, uri: Path | str, /, **sections: Any) -> Path:
    """Write a job file; `sections` are merged over the defaults, e.g. `batch={"rows": 4}`."""
    job: dict[str, Any] = {
        "name": "t",
        "model": {"tokenizer": str(STANDIN_MODEL)},
        "prompts": {"sources": [str(file)]},
        "servers": {"urls": [url]},
        "sampling": {"max_new_tokens": 256},
        "policy": {"accepted_floor": 0.5},
        "batch": {"rows": 8, "journal_dir": str(path.parent / "journals")},
        "store": {"uri": str(uri)},
    }
    for name, fields in sections.items():
        job[name] = job.get(name, {}) | fields
    path.write_text(yaml.safe_dump(job))
    return path


def opened(store: Path) -> ObjectStore:
    """Open the only job below a folder."""
    return find_job(StoreSpec(uri=str(store)))
