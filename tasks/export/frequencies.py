"""How often each id is learnt, and the draft vocabulary that follows from it (pure)."""

import io
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tasks.errors import JobError
from tasks.export.masks import Mask
from tasks.export.torch_file import dump_counts, dump_vectors
from tasks.rows.records import Ids


class Frequencies:
    """Counts the supervised ids of what is exported.

    Args:
        size: of the target's vocabulary; None: as large as the ids need.
    """

    def __init__(self, size: int | None) -> None:
        self.counts: NDArray[np.int64] = np.zeros(size or 1, np.int64)

    def add(self, ids: Ids, mask: Mask) -> None:
        """Count one sequence: int32[n] and bool[n]."""
        found = np.bincount(ids[mask], minlength=self.counts.size)
        if found.size > self.counts.size:
            self.counts = np.pad(self.counts, (0, found.size - self.counts.size))
        self.counts += found

    def as_dict(self) -> dict[int, int]:
        """Return the ids that occur, ascending, with their counts."""
        ids = np.flatnonzero(self.counts)
        return dict(zip(ids.tolist(), self.counts[ids].tolist(), strict=True))


def draft_mapping(
    counts: NDArray[np.int64], draft_size: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_], float]:
    """Return `d2t`, `t2d`, and the share of supervised ids that the draft vocabulary covers.

    The most frequent ids, the smaller one first where counts are equal; ids that never occur fill up.

    Args:
        counts: int64[target size].
        draft_size: ids in the draft vocabulary.

    Returns:
        int64[draft size]: target id minus draft id; bool[target size]: ids that have a draft id.

    Raises:
        JobError: the draft vocabulary is larger than the target's.
    """
    if draft_size > counts.size:
        raise JobError(f"draft_vocab: expected at most the target's {counts.size} ids, got {draft_size}")
    chosen = np.sort(np.argsort(-counts, kind="stable")[:draft_size])
    t2d = np.zeros(counts.size, np.bool_)
    t2d[chosen] = True
    total = int(counts.sum())
    covered = int(counts[chosen].sum()) / total if total else 0.0
    return (chosen - np.arange(draft_size)).astype(np.int64), t2d, covered


def frequency_files(counts: Frequencies, draft_size: int | None) -> Iterator[tuple[str, bytes]]:
    """Yield (name, bytes) of the files that trainers look for.

    `token_freq.pt` is speculators'; with a draft size come SpecForge's `vocab_mapping.pt`, and `d2t-N.npy`
    and `t2d-N.npy` of speculators.
    """
    yield "token_freq.pt", dump_counts(counts.as_dict())
    if draft_size is None:
        return
    d2t, t2d, _ = draft_mapping(counts.counts, draft_size)
    yield "vocab_mapping.pt", dump_vectors({"d2t": d2t, "t2d": t2d})
    for name, vector in (("d2t", d2t), ("t2d", t2d)):
        yield f"{name}-{draft_size}.npy", npy_bytes(vector)


def npy_bytes(vector: NDArray[np.generic]) -> bytes:
    """Return a vector as `numpy.save` writes it."""
    out = io.BytesIO()
    np.save(out, vector, allow_pickle=False)
    return out.getvalue()
