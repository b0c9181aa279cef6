"""`hf://org/repo[:subset[:split]]`: prompts of a dataset on the Hugging Face hub, or of a dataset folder.

The library downloads a dataset once and maps it into memory, so that any row can be read at once. A path that
begins with a slash is a folder: of data files, or as `save_to_disk` leaves it.
"""

import hashlib
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import orjson

from tasks.errors import SourceError, SurroundingsError
from tasks.job.redaction import redact
from tasks.prompts.record import Place, Record, make_record

_ROWS_AT_ONCE: Final = 256


@attrs.define(slots=True, eq=False)
class HubDataset:
    """One split of a dataset, loaded when it is first read.

    Args:
        uri: the address.
        path: repository, or absolute path of a folder.
        subset: name of the configuration; "" for the only one.
        split: name of the split; "" for the only one.
    """

    uri: str
    path: str
    subset: str
    split: str
    _rows: Any = attrs.field(default=None, init=False)

    @classmethod
    def at(cls, address: str, where: str) -> "HubDataset":
        """Return the dataset at an address; `where` is the field that holds it, for messages.

        Raises:
            SourceError: the address is malformed, or the library is not installed.
        """
        path, *rest = address.removeprefix("hf://").split(":")
        if not path.strip("/") or len(rest) > 2:
            raise SourceError(f"{where}: expected hf://org/repo[:subset[:split]], got {address!r}")
        if importlib.util.find_spec("datasets") is None:
            raise SourceError(
                f"{where}: expected the library `datasets` for {address!r}, found none: "
                "pip install 'rawseq[hf]'"
            )
        subset, split = [*rest, "", ""][:2]
        return cls(address, path, subset, split)

    def stamp(self) -> str | None:
        """Return one look for ever: a dataset of the hub is loaded from the cache that it was put into."""
        return "hub"

    def records(self, name: str, place: Place, fields: Mapping[str, str]) -> Iterator[tuple[Record, Place]]:
        """See `SourceFile.records`; a place's line is the 1-based row, its offset is 0."""
        rows = self._loaded()
        for first in range(place.line - 1, len(rows), _ROWS_AT_ONCE):
            for row, data in enumerate(rows[first : first + _ROWS_AT_ONCE].to_pylist(), first + 1):
                present = {key: value for key, value in data.items() if value is not None}
                raw = orjson.dumps(
                    present, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS, default=str
                )
                digest = hashlib.sha256(raw).hexdigest()
                yield make_record(present, name, self.uri, row, fields, digest), Place(row)

    def _loaded(self) -> Any:
        if self._rows is None:
            try:
                self._rows = self._one_split(self._load()).with_format("arrow")
            except ConnectionError as error:
                raise SurroundingsError(
                    f"{self.uri}: expected to reach the hub, got: {redact(str(error))}"
                ) from error
            except (OSError, ValueError) as error:
                raise SourceError(f"{self.uri}: expected a dataset, got: {redact(str(error))}") from error
        return self._rows

    def _load(self) -> Any:
        import datasets  # an extra, and slow to import

        folder = Path(self.path)
        if (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file():
            if self.subset:
                raise SourceError(f"{self.uri}: expected no subset of a saved dataset, got {self.subset!r}")
            return datasets.load_from_disk(self.path)
        return datasets.load_dataset(self.path, self.subset or None)

    def _one_split(self, loaded: Any) -> Any:
        splits = dict(loaded) if isinstance(loaded, dict) else {str(loaded.split): loaded}
        if not self.split and len(splits) == 1:
            return next(iter(splits.values()))
        if self.split not in splits:
            wanted = f"a split {self.split!r}" if self.split else "hf://…:subset:split, as there are several"
            raise SourceError(f"{self.uri}: expected {wanted}, got splits {', '.join(splits)}")
        return splits[self.split]
