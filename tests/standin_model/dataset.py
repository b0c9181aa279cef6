"""Conversations as ids, in batches of equal-length rows that fill a token budget."""

from collections.abc import Iterator
from multiprocessing import Pool
from pathlib import Path

import numpy as np
import numpy.typing as npt

from deployments.standin.template import ChatTemplate
from tests.standin_model.conversations import conversations

LONGEST = 3072  # ids; a longer conversation is dropped
Row = tuple[npt.NDArray[np.int16], int]  # ids, index of the first trained id


def rows_of(task: tuple[Path, int, int]) -> list[Row]:
    """The rows of one seed: (model folder, seed, conversations)."""
    folder, seed, count = task
    template, rows = ChatTemplate(folder), []
    for example in conversations(seed, count):
        prompt = template.prompt(example.messages, example.tools, thinking=example.thinking)
        ids = prompt + template.encode(example.target)
        if len(ids) <= LONGEST:
            rows.append((np.array(ids, np.int16), len(prompt)))
    return rows


def rows(folder: Path, seed: int, count: int, processes: int) -> list[Row]:
    """`count` conversations made by several processes."""
    share = 2000
    tasks = [(folder, seed + i, share) for i in range(count // share)]
    with Pool(processes) as pool:
        return [row for part in pool.imap(rows_of, tasks) for row in part]


def batches(
    all_rows: list[Row], tokens: int, rng: np.random.Generator
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]]:
    """One pass: (ids int64[rows, length], trained bool[rows, length]), padded with 0 to a multiple of 32."""
    jitter = rng.random(len(all_rows)) * 0.2 + 1
    order = np.argsort([len(ids) * j for (ids, _), j in zip(all_rows, jitter, strict=True)])
    groups: list[list[int]] = [[]]
    for index in order:
        width = -(-len(all_rows[index][0]) // 32) * 32
        if groups[-1] and width * (len(groups[-1]) + 1) > tokens:
            groups.append([])
        groups[-1].append(int(index))
    for group in rng.permutation(len(groups)):
        yield _padded([all_rows[i] for i in groups[group]])


def _padded(group: list[Row]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """One batch."""
    width = -(-max(len(ids) for ids, _ in group) // 32) * 32
    ids = np.zeros((len(group), width), np.int64)
    trained = np.zeros((len(group), width), np.bool_)
    for i, (row, start) in enumerate(group):
        ids[i, : len(row)] = row
        trained[i, start : len(row)] = True
    return ids, trained
