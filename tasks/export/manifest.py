"""The words around an export's files: what was asked and pinned, and what there is at the end, by sha256."""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, Final, cast

import attrs
import orjson

from tasks.errors import DataError, JobError
from tasks.export.files import Part
from tasks.export.formats import FORMATS
from tasks.export.frequencies import Frequencies, draft_mapping, frequency_files
from tasks.export.options import ExportOptions
from tasks.export.order import SPLITS
from tasks.export.pinned import PinnedStore
from tasks.export.tally import Tally
from tasks.job.spec import SCHEMA_VERSION
from tasks.store.contract import MissingError, ObjectStore, digest_of, sha256_hex

REQUEST: Final = "export.json"
MANIFEST: Final = "manifest.json"


def pinned_request(
    out: ObjectStore,
    stores: Sequence[PinnedStore],
    options: ExportOptions,
    say: Callable[[str], None],
) -> list[PinnedStore]:
    """Write down what is asked, or take up what the export was begun with.

    Returns:
        The stores with the receipts that count; `say` is told if there are others by now.

    Raises:
        JobError: there is another export, or something else.
    """
    if out.head(REQUEST) is None:
        others = [info.key for info in islice(out.list(""), 5)]
        if others and out.head(REQUEST) is None:  # still: another process of this export may have begun
            raise JobError(f"{out.uri}: expected nothing there, got {', '.join(others)}")
        if out.put(REQUEST, _pretty(_request(stores, options)), create_only=True):
            return list(stores)
    stored = _check_request(out, stores, options)
    taken = [
        store.with_receipts(entry["receipts"]) for store, entry in zip(stores, stored["stores"], strict=True)
    ]
    later = sum(old.batches != new.batches for old, new in zip(taken, stores, strict=True))
    if later:
        say(
            f"goes on with the receipts it began with; {later} stores have others by now: choose another "
            "place to export those"
        )
    return taken


def _request(stores: Sequence[PinnedStore], options: ExportOptions) -> dict[str, Any]:
    return {
        "schema": SCHEMA_VERSION,
        "options": options.model_dump(mode="json"),
        "stores": [store.as_json() for store in stores],
    }


def _pretty(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n"


def _check_request(out: ObjectStore, stores: Sequence[PinnedStore], options: ExportOptions) -> dict[str, Any]:
    try:
        stored = orjson.loads(out.get(REQUEST))
        asked = _asked(stored)
    except (MissingError, orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise JobError(f"{out.uri}/{REQUEST}: expected what an export was asked for, got {error!r}") from None
    now = _asked(orjson.loads(orjson.dumps(_request(stores, options))))
    for name in sorted({*asked, *now}):
        if asked.get(name) != now.get(name):
            raise JobError(
                f"{out.uri}: holds an export with {name} {asked.get(name)!r}, now {now.get(name)!r}: "
                "choose another place"
            )
    return cast(dict[str, Any], stored)


def _asked(request: Mapping[str, Any]) -> dict[str, Any]:
    stores = [(store["uri"], store["job_id"], store["weight"]) for store in request["stores"]]
    return {"stores": stores, **request["options"]}


def finished_report(
    out: ObjectStore, stores: Sequence[PinnedStore], options: ExportOptions
) -> dict[str, Any] | None:
    """Return the report of an export that is complete, after checking every digest; None if it is not.

    Raises:
        JobError: it is another export.
        DataError: a file is not what the manifest says.
    """
    if out.head(MANIFEST) is None:
        return None
    _check_request(out, stores, options)
    manifest = orjson.loads(out.get(MANIFEST))
    for entry in manifest["files"]:
        _, digest = digest_of(out, entry["name"]) or (0, "no file")
        if digest != entry["sha256"]:
            raise DataError(
                f"{out.uri}/{entry['name']}: expected sha256 {entry['sha256']}, got {digest}: export anew"
            )
    return _report(manifest, out, written=False)


def finish(
    out: ObjectStore,
    stores: Sequence[PinnedStore],
    options: ExportOptions,
    parts: Sequence[Part],
    tally: Tally,
    frequencies: Frequencies,
) -> dict[str, Any]:
    """Write the small files and, last, the manifest; return the report.

    Raises:
        DataError: another process wrote other bytes here meanwhile.
    """
    small = _small_files(options, parts, frequencies)
    for part in parts:
        _check_part(out, part)
    entries = [attrs.asdict(part) for part in parts]
    for name, data in small.items():
        out.put(name, data)
        entries.append({"name": name, "sha256": sha256_hex(data), "bytes": len(data)})
    manifest = _request(stores, options) | {"files": entries} | tally.as_json()
    if options.draft_vocab is not None:
        _, _, covered = draft_mapping(frequencies.counts, options.draft_vocab)
        manifest["draft_vocab"] = {"size": options.draft_vocab, "share_of_supervised": round(covered, 6)}
    data = _pretty(manifest)
    if not out.put(MANIFEST, data, create_only=True) and out.get(MANIFEST) != data:
        raise DataError(f"{out.uri}/{MANIFEST}: expected to finish this export, got another's: export anew")
    return _report(manifest, out, written=True)


def _check_part(out: ObjectStore, part: Part) -> None:
    info = out.head(part.name)
    if info is None or info.size != part.bytes or info.sha256 not in ("", part.sha256):
        raise DataError(
            f"{out.uri}/{part.name}: expected the {part.bytes} bytes with sha256 {part.sha256} that were "
            f"written, got {info}: run again"
        )


def _small_files(options: ExportOptions, parts: Sequence[Part], frequencies: Frequencies) -> dict[str, bytes]:
    kind = FORMATS[options.to]
    names = {split: [PurePosixPath(p.name).name for p in parts if p.split == split] for split in SPLITS}
    splits = [split for split in SPLITS if names[split]]
    found = dict(kind.top(splits))
    for split in splits:
        found |= {f"{split}/{name}": data for name, data in kind.beside(names[split]).items()}
    # speculators looks for these beside its rows
    where = "train/" if options.to == "speculators-arrow" and "train" in splits else ""
    counted = frequency_files(frequencies, options.draft_vocab)
    return found | {f"{where}{name}": data for name, data in counted}


def _report(manifest: Mapping[str, Any], out: ObjectStore, *, written: bool) -> dict[str, Any]:
    stores = [
        {"uri": s["uri"], "job_id": s["job_id"], "weight": s["weight"], "batches": len(s["receipts"])}
        for s in manifest["stores"]
    ]
    kept = {key: value for key, value in manifest.items() if key not in ("stores", "schema", "refused_rows")}
    return {
        "out": out.uri,
        "state": "written" if written else "already complete",
        "stores": stores,
    } | kept
