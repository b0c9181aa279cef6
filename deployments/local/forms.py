"""What the run forms of the local stack are filled with, and how its runs are stopped."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.states import Cancelled, Cancelling

from tasks.job.spec import JobSpec

STOP_SECONDS = 30.0
"""A cancelled run closes its files and tells its servers to abort: seconds, more on a busy machine."""
POLL_SECONDS = 0.5


def merged(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """Return `low` with the sections of `high` laid over it."""
    both = dict(low)
    for name, value in high.items():
        under = both.get(name)
        both[name] = merged(under, value) if isinstance(value, dict) and isinstance(under, dict) else value
    return both


def form_values(job: JobSpec, exports: Path) -> dict[str, Any]:
    """Return what a parameter of any flow is filled with, by its name.

    Args:
        job: gives `job`, its sections, and the dataset that is audited and exported.
        exports: folder of what is exported.
    """
    sections = job.model_dump(mode="json", exclude_defaults=True)
    dataset = {"uri": f"{job.store.uri}/{job.job_id}"}
    return sections | {
        "job": sections,
        "stores": [dataset],
        "options": {"to": "datasets"},
        "out": {"uri": str(exports)},
    }


def fill_forms(client: SyncPrefectClient, values: Mapping[str, Any]) -> dict[str, str]:
    """Lay values over every deployment's preset; return the deployments' ids by name.

    Args:
        client: of the Prefect server.
        values: what a parameter of any flow is filled with, by its name.
    """
    ids = {}
    for deployment in client.read_deployments():
        names = (deployment.parameter_openapi_schema or {}).get("properties", {})
        filled = {name: values[name] for name in names if name in values}
        update = DeploymentUpdate(parameters=merged(deployment.parameters, filled), tags=deployment.tags)
        client.update_deployment(deployment.id, update)
        ids[deployment.name] = str(deployment.id)
    return ids


def cancel_runs(client: SyncPrefectClient, pool: str) -> list[str]:
    """Cancel the runs under way of a work pool and wait until they have ended; return their names."""
    runs = _under_way(client, pool)
    for run in runs:
        started = run.state is not None and run.state.type == StateType.RUNNING
        client.set_flow_run_state(run.id, Cancelling() if started else Cancelled())
    deadline = time.monotonic() + STOP_SECONDS
    while _under_way(client, pool) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    for run in runs:
        ended = client.read_flow_run(run.id).state
        if ended is not None and ended.type == StateType.CRASHED:  # how Prefect notes the worker's SIGTERM
            client.set_flow_run_state(run.id, Cancelled(message="its stack was stopped"), force=True)
    return [run.name for run in runs]


def _under_way(client: SyncPrefectClient, pool: str) -> list[FlowRun]:
    types = FlowRunFilterStateType(any_=[StateType.RUNNING, StateType.PENDING, StateType.CANCELLING])
    return client.read_flow_runs(
        flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=types)),
        work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[pool])),
    )
