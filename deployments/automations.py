"""The automations beside the deployments: dead runs become Crashed, crashed ones resume, people are told.

They see events only of flow runs that carry the tag `rawseq`; see `deployments/prefect.yaml`.
"""

from datetime import timedelta
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState, SendNotification
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

SILENT_SECONDS = 90
"""Three heartbeats of 30 s (`PREFECT_FLOWS_HEARTBEAT_FREQUENCY` in prefect.yaml): one may be lost."""

PENDING_SECONDS = 600
"""A run that a worker has taken begins by then, an image pulled and a busy machine included."""

MOST_RESUMES = 3
"""A run that crashed so often is left to a person: something ends it each time."""

KILLED = [
    "no sign of life*",
    "Process exited with status code: -9*",
    "Process exited with status code: -11*",
    "Process exited with status code: 1. *",
    "Execution was cancelled by the runtime environment*",
]
"""How a Crashed state begins that nobody asked for: lost, SIGKILL (also out of memory), SIGSEGV; and when the
Prefect server was away: a process that could not tell it how its run ended, a run whose place under a
concurrency limit Prefect's client could not renew.

Cancelling and stopping send SIGTERM, which is Crashed for a moment too: such a run must stay ended.
"""

RUNS = "prefect.flow-run.*"
TOLD = ("Failed", "Crashed", "Completed")


def _tagged(tag: str) -> dict[str, str | list[str]]:
    return {"prefect.resource.id": f"prefect.tag.{tag}", "prefect.resource.role": "tag"}


def silent_runs_crash() -> AutomationCore:
    """A flow run whose heartbeat stops becomes Crashed: its host or process died, and nobody said so."""
    return _crash_after(
        "prefect.flow-run.heartbeat",
        SILENT_SECONDS,
        "rawseq: silent runs become Crashed",
        f"No heartbeat and no other event of a flow run for {SILENT_SECONDS} s.",
        "it was killed",
    )


def pending_runs_crash(seconds: int = PENDING_SECONDS) -> AutomationCore:
    """A flow run that stays Pending becomes Crashed: the worker that took it died before it began.

    Args:
        seconds: how long it may be Pending.
    """
    return _crash_after(
        "prefect.flow-run.Pending",
        seconds,
        "rawseq: runs that never begin become Crashed",
        f"Taken by a worker, and nothing more for {seconds} s.",
        "its worker died before it began",
    )


def _crash_after(event: str, seconds: int, name: str, description: str, cause: str) -> AutomationCore:
    """A flow run of which nothing is heard for so long after an event becomes Crashed."""
    return AutomationCore(
        name=name,
        description=description,
        trigger=EventTrigger(
            after={event},
            expect={RUNS},
            match={"prefect.resource.id": RUNS},
            match_related=_tagged("rawseq"),
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=seconds),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED,
                name="Crashed",
                force=False,
                message=f"no sign of life for {seconds} s: {cause}",
            )
        ],
    )


def crashed_runs_resume() -> AutomationCore:
    """A crashed run is scheduled again, `MOST_RESUMES` times at most; ledger and journals make it resume."""
    return AutomationCore(
        name="rawseq: crashed runs resume",
        description=f"At most {MOST_RESUMES} times a run; the rows that lie in the store or journals stay.",
        trigger=EventTrigger(
            expect={"prefect.flow-run.Crashed"},
            match={
                "prefect.resource.id": RUNS,
                "prefect.state-message": KILLED,
                "prefect.run-count": [str(count) for count in range(1, MOST_RESUMES + 1)],
            },
            match_related=_tagged("resumes"),
            for_each={"prefect.resource.id"},
            posture=Posture.Reactive,
            threshold=1,
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.SCHEDULED, name="AwaitingRetry", message="resumed after a crash", force=True
            )
        ],
    )


def runs_are_told(block: UUID) -> AutomationCore:
    """Send what became of a run to a notification block: failed, crashed or finished."""
    return AutomationCore(
        name="rawseq: tell how runs end",
        description="Failed, crashed and finished runs, to a notification block.",
        trigger=EventTrigger(
            expect={f"prefect.flow-run.{name}" for name in TOLD},
            match={"prefect.resource.id": RUNS},
            match_related=_tagged("rawseq"),
            posture=Posture.Reactive,
            threshold=1,
        ),
        actions=[
            SendNotification(
                block_document_id=block,
                subject="rawseq: {{ flow_run.name }} {{ flow_run.state.name }}",
                body="{{ flow_run.state.message }}\n{{ flow_run|ui_url }}",
            )
        ],
    )


def restarts_are_told(block: UUID) -> AutomationCore:
    """Send every restart of a server to a notification block."""
    return AutomationCore(
        name="rawseq: tell restarts of servers",
        description="A job or the maintenance started a server again, to a notification block.",
        trigger=EventTrigger(expect={"rawseq.server.restarted"}, posture=Posture.Reactive, threshold=1),
        actions=[
            SendNotification(
                block_document_id=block,
                subject="rawseq: server restarted",
                body="{{ event.resource.name }}\n{{ event.payload.evidence }}",
            )
        ],
    )


def register_automations(client: SyncPrefectClient, block: UUID | None = None) -> list[str]:
    """Create the automations, or bring those of the same name up to date; return their names.

    Args:
        client: of the Prefect server.
        block: document of the notification block that is told; None: nobody is.
    """
    wanted = [silent_runs_crash(), pending_runs_crash(), crashed_runs_resume()]
    if block is not None:
        wanted += [runs_are_told(block), restarts_are_told(block)]
    for automation in wanted:
        found = client.read_automations_by_name(automation.name)
        if found:
            client.update_automation(found[0].id, automation)
        else:
            client.create_automation(automation)
    return [automation.name for automation in wanted]
