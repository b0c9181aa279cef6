"""Journals that a crash between receipt and removal left: the next run removes them."""

import contextlib
import logging
from collections.abc import Iterable
from pathlib import Path

from tasks.errors import SurroundingsError
from tasks.storage.journal import Journal
from tasks.storage.plan import Batch

_LOG = logging.getLogger("rawseq.journal")


def sweep_journals(root: Path, job_id: str, committed: Iterable[Batch]) -> int:
    """Remove the journals of committed batches below `root`; return how many there were.

    A journal that another process has open is left to it. Foreign parts are set aside, never removed.

    Args:
        root: the job's folder of journals, one folder per batch named by its six digits.
        job_id: the job.
        committed: planned batches that have a receipt.
    """
    if not root.is_dir():
        return 0
    there = {path.name for path in root.iterdir() if path.is_dir()}
    removed = 0
    for batch in committed:
        folder = root / f"{batch.index:06d}"
        if folder.name not in there:
            continue
        with contextlib.suppress(SurroundingsError):  # its owner is about to remove it
            Journal.open(folder, job_id, batch, "sweep").remove()
            _LOG.info("%s: removed, its batch is committed", folder)
            removed += 1
    return removed
