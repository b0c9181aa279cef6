"""The words around an export's files: what was asked and pinned, and what there is at the end, by sha256."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import attrs
import orjson

from tasks.errors import DataError, JobError
from tasks.spec import SCHEMA_VERSION
from tasks.storage.trainers.files import Part, write_file
from tasks.storage.trainers.formats import FORMATS
from tasks.storage.trainers.frequencies import Frequencies, draft_mapping, frequency_files
from tasks.storage.trainers.options import ExportOptions
from tasks.storage.trainers.order import SPLITS
from tasks.storage.trainers.pinned import PinnedStore
from tasks.storage.trainers.tally import Tally

REQUEST: Final = "export.json"
MANIFEST: Final = "manifest.json"


def pinned_request(
    folder: Path, stores: Sequence[PinnedStore], options: ExportOptions
) -> tuple[list[PinnedStore], list[str]]:
    """Write down what is asked, or take up what the folder was begun with.

    Returns:
        The stores with the receipts that count, and lines for a person.

    Raises:
        JobError: the folder holds another export, or other files.
    """
    path = folder / REQUEST
    if not path.exists():
        if others := sorted(entry.name for entry in folder.iterdir() if not _ours(entry)):
            raise JobError(f"{folder}: expected an empty folder, got {', '.join(others[:5])}")
        write_file(path, _pretty(_request(stores, options)))
        return list(stores), []
    stored = _check_request(path, stores, options)
    taken = [
        store.with_receipts(entry["receipts"]) for store, entry in zip(stores, stored["stores"], strict=True)
    ]
    later = sum(old.batches != new.batches for old, new in zip(taken, stores, strict=True))
    note = (
        f"goes on with the receipts it began with; {later} stores have others by now: choose another folder"
    )
    return taken, [f"{note} to export those"] if later else []


def _ours(entry: Path) -> bool:
    return entry.name == f".{REQUEST}.partial"


def _request(stores: Sequence[PinnedStore], options: ExportOptions) -> dict[str, Any]:
    return {
        "schema": SCHEMA_VERSION,
        "options": options.model_dump(mode="json"),
        "stores": [store.as_json() for store in stores],
    }


def _pretty(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n"


def _check_request(path: Path, stores: Sequence[PinnedStore], options: ExportOptions) -> dict[str, Any]:
    try:
        stored = orjson.loads(path.read_bytes())
        asked = _asked(stored)
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise JobError(f"{path}: expected what an export was asked for, got {error!r}") from None
    now = _asked(orjson.loads(orjson.dumps(_request(stores, options))))
    for name in sorted({*asked, *now}):
        if asked.get(name) != now.get(name):
            raise JobError(
                f"{path.parent}: holds an export with {name} {asked.get(name)!r}, now {now.get(name)!r}: "
                "choose another folder"
            )
    return cast(dict[str, Any], stored)


def _asked(request: Mapping[str, Any]) -> dict[str, Any]:
    stores = [(store["uri"], store["job_id"], store["weight"]) for store in request["stores"]]
    return {"stores": stores, **request["options"]}


def finished_report(
    folder: Path, stores: Sequence[PinnedStore], options: ExportOptions
) -> dict[str, Any] | None:
    """Return the report of a folder whose export is complete, after checking every digest; None if it is not.

    Raises:
        JobError: it is another export.
        DataError: a file is not what the manifest says.
    """
    path = folder / MANIFEST
    if not path.exists():
        return None
    _check_request(folder / REQUEST, stores, options)
    manifest = orjson.loads(path.read_bytes())
    for entry in manifest["files"]:
        file = folder / entry["name"]
        digest = _digest(file) if file.is_file() else "no file"
        if digest != entry["sha256"]:
            raise DataError(f"{file}: expected sha256 {entry['sha256']}, got {digest}: export anew")
    return _report(manifest, folder, written=False)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def finish(
    folder: Path,
    stores: Sequence[PinnedStore],
    options: ExportOptions,
    parts: Sequence[Part],
    tally: Tally,
    frequencies: Frequencies,
) -> dict[str, Any]:
    """Write the small files and, last, the manifest; return the report."""
    small = _small_files(options, parts, frequencies)
    entries = [attrs.asdict(part) for part in parts]
    for name, data in small.items():
        digest, size = write_file(folder / name, data)
        entries.append({"name": name, "sha256": digest, "bytes": size})
    manifest = _request(stores, options) | {"files": entries} | tally.as_json()
    if options.draft_vocab is not None:
        _, _, covered = draft_mapping(frequencies.counts, options.draft_vocab)
        manifest["draft_vocab"] = {"size": options.draft_vocab, "share_of_supervised": round(covered, 6)}
    write_file(folder / MANIFEST, _pretty(manifest))
    return _report(manifest, folder, written=True)


def _small_files(options: ExportOptions, parts: Sequence[Part], frequencies: Frequencies) -> dict[str, bytes]:
    kind = FORMATS[options.to]
    names = {split: [Path(p.name).name for p in parts if p.split == split] for split in SPLITS}
    splits = [split for split in SPLITS if names[split]]
    found = dict(kind.top(splits))
    for split in splits:
        found |= {f"{split}/{name}": data for name, data in kind.beside(names[split]).items()}
    # speculators looks for these beside its rows
    where = "train/" if options.to == "speculators-arrow" and "train" in splits else ""
    counted = frequency_files(frequencies, options.draft_vocab)
    return found | {f"{where}{name}": data for name, data in counted}


def _report(manifest: Mapping[str, Any], folder: Path, *, written: bool) -> dict[str, Any]:
    stores = [
        {"uri": s["uri"], "job_id": s["job_id"], "weight": s["weight"], "batches": len(s["receipts"])}
        for s in manifest["stores"]
    ]
    kept = {key: value for key, value in manifest.items() if key not in ("stores", "schema", "refused_rows")}
    return {
        "out": str(folder),
        "state": "written" if written else "already complete",
        "stores": stores,
    } | kept
