"""What the export step does, without Prefect: opens the stores, and the teller where a format wants text."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from tasks.export.conversations import Conversations
from tasks.export.export import export
from tasks.export.options import ExportedStore, ExportOptions, ExportPlace
from tasks.store.contract import ObjectStore
from tasks.store.opening import find_job, open_store


def export_stores(
    stores: Sequence[ExportedStore],
    options: ExportOptions,
    out: ExportPlace,
    credentials: Sequence[Mapping[str, str] | None],
    say: Callable[[str], None],
    stopped: Callable[[], bool],
) -> dict[str, Any]:
    """Open the stores and where the files go, and export; raises as `export`.

    Args:
        stores: jobs' own prefixes, or parents with exactly one job.
        options: how.
        out: where to.
        credentials: of each store, then of `out`; None leaves it to the AWS chain.
        say: takes one line for a person at a time.
        stopped: whether to give the rest up.
    """
    with ExitStack() as stack:
        opened = []
        *of_stores, of_out = credentials
        for spec, keys in zip(stores, of_stores, strict=True):
            opened.append(find_job(spec, credentials=keys))
            stack.callback(opened[-1].close)
        place = open_store(out, credentials=of_out)
        stack.callback(place.close)
        weights = [store.weight for store in stores]
        return export_opened(opened, weights, options, place, say, stopped, of_stores)


def export_opened(
    stores: Sequence[ObjectStore],
    weights: Sequence[float],
    options: ExportOptions,
    out: ObjectStore,
    say: Callable[[str], None],
    stopped: Callable[[], bool] = lambda: False,
    credentials: Sequence[Mapping[str, str] | None] = (),
) -> dict[str, Any]:
    """Export open stores; raises as `export`, and as `Conversations` for the format that needs it."""
    teller = None
    if options.to == "specforge-conversations":
        teller = Conversations(stores, credentials or [None] * len(stores))
    return export(stores, weights, options, out, teller, say, stopped)
