"""Committed rows as files that a trainer reads."""

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows.chain import clean_stop
from tasks.export.options import ExportedStore, ExportOptions, ExportPlace
from tasks.steps import write_export


@flow(name="export-dataset", flow_run_name="export to {options.to}", persist_result=False)
async def export_dataset(stores: list[ExportedStore], options: ExportOptions, out: ExportPlace) -> State[Any]:
    """Write what the stores hold into a folder of the worker or to S3; run again it goes on where it stopped.

    Args:
        stores: Which datasets, and how often the rows of each come.
        options: For which trainer, and how.
        out: Where to: nothing lies there, or this same export.
    """
    async with clean_stop():
        report = await write_export(stores, options, out)
    written = ", ".join(f"{count} {split} rows" for split, count in report["rows"]["written"].items())
    return Completed(message=f"{written} in {report['out']}")
