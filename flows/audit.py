"""A stored dataset re-read and compared with everything that was said of it; optionally re-scored."""

from typing import Any

from prefect import flow, get_run_logger
from prefect.artifacts import acreate_table_artifact
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from flows.chain import clean_stop
from tasks.audit.audit import findings
from tasks.audit.likelihood import TOLERANCE
from tasks.audit.report import AuditReport
from tasks.audit.rescoring import Rescore
from tasks.job.spec import ServersSpec, StoreSpec
from tasks.steps import UNSEEN, audit_store, rescore_rows


@flow(name="audit-dataset", flow_run_name="audit {store.uri}", persist_result=False)
async def audit_dataset(
    store: StoreSpec,
    rescore: ServersSpec | None = None,
    sample: int = 64,
    seed: int = 0,
    tolerance: float = TOLERANCE,
) -> State[Any]:
    """Check every receipt, shard, sha256, count, grammar and row id; fail when it cannot be trained on.

    Args:
        store: Where the job lies: its own prefix, or a parent with exactly one job.
        rescore: The one server that is asked whether its model can have made the ids; empty: none.
        sample: Rows that are re-scored.
        seed: Of the choice of rows.
        tolerance: Nats by which log probabilities may differ.
    """
    async with clean_stop():
        report, chosen = await audit_store(store, sample, seed)
        if rescore is not None:
            report = await rescore_rows(store, report, chosen, Rescore(rescore, sample, seed, tolerance))
        await _show(report)
    state = Completed if report.trainable else Failed
    return state(message=report.reason)


async def _show(report: AuditReport) -> None:
    """Put the findings into the UI; an outage there must not fail the audit."""
    key = f"audit-{report.job_id or 'unknown'}".replace(".", "-").replace("_", "-")
    try:
        await acreate_table_artifact(table=findings(report), key=key, description=report.reason)
    except UNSEEN as error:
        get_run_logger().warning("could not show the findings: %s", error)
