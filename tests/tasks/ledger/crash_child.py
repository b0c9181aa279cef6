"""Runs a small job in forked children, and kills each child one call later than the one before.

Not a test module: `test_crashes.py` starts it. Prints one JSON object.

    python crash_child.py FOLDER PROMPTS before|after [ENDPOINT BUCKET]   (keys from the AWS environment)
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.job.spec import JobSpec, StoreSpec
from tasks.ledger.journal import Journal
from tasks.ledger.journal_folder import sweep_journals
from tasks.ledger.ledger import Ledger
from tasks.prompts.opening import open_sources
from tasks.prompts.plan_batches import extend_plan
from tasks.store.contract import ObjectStore, canonical, sha256_hex
from tasks.store.folder import FolderStore
from tasks.store.s3 import S3Store
from tasks.store.s3_client import make_client
from tests.support.small_jobs import RESOLVED, checked_batch, completion_of, job_spec, receipt_of

CALLS = ("fsync", "fdatasync", "link", "replace", "unlink", "pwrite", "rmdir")


class Killer:
    """Counts calls and ends the process, as a crash would, at call number `at`."""

    def __init__(self, at: int, when: str) -> None:
        self.left = at
        self.when = when

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return `call` with a crash before or after it when its turn has come."""

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            mine = self.left == 0
            if mine and self.when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            result = call(*args, **kwargs)
            if mine:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return wrapped

    def arm(self, store: ObjectStore) -> None:
        """Count file calls, and S3 requests if there are any."""
        for name in CALLS:
            setattr(os, name, self.wrap(getattr(os, name)))
        client = getattr(store, "_client", None)
        if client is not None:
            client._endpoint.http_session.send = self.wrap(client._endpoint.http_session.send)


def work(folder: Path, spec: JobSpec, store: ObjectStore, run: str, killer: Killer | None) -> None:
    """Do what a run does: plan, journal every row of every pending batch, check, upload, commit."""
    if killer is not None:
        killer.arm(store)
    ledger = Ledger(store, spec.job_id)
    ledger.open_job(spec, RESOLVED)
    sources = open_sources(spec.prompts)
    plan = extend_plan(ledger, sources, spec, sha256_hex(canonical(RESOLVED)))
    pending = ledger.pending(plan)
    sweep_journals(folder / "journal", spec.job_id, plan.batches, ledger.committed())
    for batch in pending:
        made = (folder / "made.log").open("a")
        with (
            Journal.open(folder / "journal" / f"{batch.index:06d}", spec.job_id, batch, run) as journal,
            made,
        ):
            answers = [completion_of(record, 0) for record in sources.read(batch)]
            for answer in answers:
                if answer.row_id not in journal.done:
                    made.write(f"{answer.row_id}\n")
                    made.flush()
                    journal.append(answer)
            journal.flush()
            rows = list(journal.completions([answer.row_id for answer in answers]))
            ledger.commit(receipt_of(ledger, batch, checked_batch(batch.index, rows)))
            journal.remove()


def in_child(folder: Path, spec: JobSpec, store: ObjectStore, run: str, killer: Killer | None = None) -> bool:
    """Run the work in a forked child; say whether it ended by itself."""
    pid = os.fork()
    if pid == 0:
        try:
            work(folder, spec, store, run, killer)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(3)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return False
    if status != 0:
        raise SystemExit(f"{run}: the child failed with status {status}")
    return True


def main(folder: Path, prompts: str, when: str, endpoint: str = "", bucket: str = "") -> None:
    """Crash at the first call, then at the second, … until a run gets through; each time go on to the end."""
    pa.array(np.zeros(1, np.int32))  # imports pandas where it is installed: here, not in every child
    trials = 0
    region = StoreSpec(uri=f"s3://{bucket}", endpoint_url=endpoint or None, region="us-east-1")
    client = (
        make_client(region, None, None) if endpoint else None
    )  # made once, not yet connected: safe to fork
    while True:
        place = folder / f"trial-{trials}"
        place.mkdir(parents=True)
        spec = job_spec(place, prompts, batch={"rows": 4})
        store: ObjectStore = FolderStore(place / "store" / spec.job_id)
        if client is not None:
            store = S3Store(client, bucket, f"{when}-{trials}/{spec.job_id}", 20.0)
        through = in_child(place, spec, store, "first", Killer(trials + 1, when))
        if not through:  # crash a second time shortly after, then let it through
            in_child(place, spec, store, "second", Killer(trials % 7 + 3, when))
            in_child(place, spec, store, "third")
        trials += 1
        if through:
            break
    print(json.dumps({"trials": trials}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
