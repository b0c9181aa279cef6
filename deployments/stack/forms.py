"""What the run forms of the local stack are filled with, and how its runs are stopped."""

import time
from collections.abc import Mapping
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

from tasks.spec import JobSpec

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


def fill_forms(client: SyncPrefectClient, job: JobSpec) -> dict[str, str]:
    """Lay the sections of `job` over every deployment's preset; return the deployments' ids by name.

    Args:
        client: of the Prefect server.
        job: a parameter of a flow that is named like it (`job`) or one of its sections gets that.
    """
    values = {"job": job.model_dump(mode="json", exclude_defaults=True)}
    values |= values["job"]
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
    return [run.name for run in runs]


def _under_way(client: SyncPrefectClient, pool: str) -> list[FlowRun]:
    types = FlowRunFilterStateType(any_=[StateType.RUNNING, StateType.PENDING, StateType.CANCELLING])
    return client.read_flow_runs(
        flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=types)),
        work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[pool])),
    )
