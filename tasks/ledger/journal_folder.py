"""A job's folder of journals: what it takes, and what a crash between receipt and removal left in it."""

import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tasks.errors import SurroundingsError
from tasks.ledger.batch import Batch
from tasks.ledger.journal import Journal
from tasks.ledger.receipt import parse_unit

_LOG = logging.getLogger("rawseq.journal")


def sweep_journals(root: Path, job_id: str, batches: Sequence[Batch], committed: Mapping[int, int]) -> int:
    """Remove the journals of committed generations below `root`; return how many there were.

    A journal that another process has open is left to it. Foreign parts are set aside, never removed.

    Args:
        root: the job's folder of journals, one folder per generation of a batch, see `unit_name`.
        job_id: the job.
        batches: the plan's.
        committed: highest generation of each batch that has a receipt, see `Ledger.committed`.
    """
    removed = 0
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        place = parse_unit(folder.name)
        if place is None or committed.get(place[0], -1) < place[1] or place[0] >= len(batches):
            continue
        with contextlib.suppress(SurroundingsError):  # its owner is about to remove it
            Journal.open(folder, job_id, batches[place[0]], "sweep").remove()
            _LOG.info("%s: removed, its batch is committed", folder)
            removed += 1
    return removed


def disk_bytes(root: Path) -> int:
    """Return how many bytes the journals below `root` take; what vanishes meanwhile counts nothing."""
    total = 0
    for folder in os.listdir(root) if root.is_dir() else ():
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(root / folder) as parts:
            for part in parts:
                with contextlib.suppress(FileNotFoundError):
                    total += part.stat().st_size
    return total
