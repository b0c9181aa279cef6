"""The table of formats: how a file of each is written, how large it grows, what lies beside it."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import attrs

from tasks.export import arrow, parquet
from tasks.export.files import RowWriter
from tasks.export.jsonl import JsonlWriter
from tasks.store.new_object import NewObject

MEBI: Final = 2**20


@attrs.frozen(slots=True)
class Format:
    """One kind of files.

    Args:
        pattern: name of file number n of a split.
        open: starts a file; None: no rows are written.
        file_tokens: ids per file.
        beside: small files of a split by name, once its files are known by name.
        top: small files of the whole export by name, once its splits are known.
    """

    pattern: str
    open: Callable[[NewObject], RowWriter] | None
    file_tokens: int
    beside: Callable[[list[str]], Mapping[str, bytes]] = lambda names: {}
    top: Callable[[list[str]], Mapping[str, bytes]] = lambda splits: {}


FORMATS: Final[Mapping[str, Format]] = MappingProxyType(
    {
        # SpecForge 0.2.0 reads one whole file into Python lists, about 48 bytes an id: 256 Mi ids are 12 GiB
        # of RAM and a file of 2.6 GB
        "specforge": Format("part-{:05d}.jsonl", JsonlWriter, 256 * MEBI),
        # datasets streams it, the text of an id is some 4 bytes
        "specforge-conversations": Format("part-{:05d}.jsonl", JsonlWriter, 64 * MEBI),
        "speculators": Format("part-{:05d}.jsonl", JsonlWriter, 64 * MEBI),
        # 16 bytes an id (two int64 columns): files of 1 GiB, mapped, not loaded
        "speculators-arrow": Format(
            "data-{:05d}.arrow", arrow.SpeculatorsWriter, 64 * MEBI, beside=arrow.speculators_files
        ),
        "datasets": Format(
            "data-{:05d}.arrow",
            arrow.DatasetsWriter,
            64 * MEBI,
            beside=arrow.datasets_files,
            top=arrow.dataset_dict,
        ),
        "parquet": Format("part-{:05d}.parquet", parquet.ParquetRows, 64 * MEBI),
        "frequencies": Format("", None, 64 * MEBI),
    }
)
