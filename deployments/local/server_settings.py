"""Settings of a Prefect server that we start, and that `README.md` asks of any other."""

from typing import Final

SERVER_SETTINGS: Final = {
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "2",
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_BATCH_SIZE": "500",
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
}
"""Task runs and events are written many at a time, two and five seconds late at most: Prefect 3.9.1 writes
each change of a task run by itself, which is most of what a step costs the server (`scale.md`).

Leases of concurrency limits outlive a restart of the server: kept in memory they would be gone, and Prefect's
client ends a run whose lease is gone.
"""
