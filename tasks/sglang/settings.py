"""What a fleet is to be: servers, probe, time limits."""

import os
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import attrs

from tasks.errors import JobError
from tasks.job.redaction import note_secret
from tasks.job.spec import ServersSpec
from tasks.sglang.client import Access
from tasks.sglang.judge import ProbePlan

Say = Callable[[str], None]
"""Takes one line for a person."""


Check = Callable[[], Awaitable[None]]
"""Raises `LaterError` when a lock is not held any more."""


async def unchecked() -> None:
    """Find nothing wrong: the check of a lock that cannot be lost."""


def say_nothing(line: str) -> None:
    """Take a line and keep silent."""


@attrs.frozen(slots=True)
class Patience:
    """Time limits inside the fleet, in seconds; tests shrink them.

    Args:
        poll_seconds: between two looks at an open server's loads.
        look_seconds: limit of one look.
        health_seconds: limit of one health check (SGLang's own gives up after 20 s).
        stale_seconds: rows there, yet none runs or the scheduler's snapshot stands still: it hangs.
        lost_seconds: rows of ours in flight, yet the server knows of none: their replies are lost.
        silent_looks: failed looks in a row before a server is in doubt.
        check_tries: failed health checks in a row before it counts as down.
        join_seconds: how long ready servers wait for the others before the job begins.
        backoff_seconds: first pause after a failure; doubles up to `backoff_most_seconds`, with jitter.
        backoff_most_seconds: longest pause.
        busy_seconds: how long a server may refuse every row as full before it must pass a fresh probe.
        deadline_floor_seconds: no attempt is given up for slowness before.
        alarm_seconds: least time between two fresh probes for replies with broken ids.
        settled_seconds: open for so long, a server that goes away had been back although it completed no row.
        breaker_failures: failed attempts in a row before a server must pass a fresh probe.
        info_seconds: between two looks whether an open server says the same of itself.
        fingerprint_seconds: between two askings for its fingerprint: about 0.1 s of prefill each.
        watchdog_seconds: between two looks whether rows wait that nothing would wake.
    """

    poll_seconds: float = 1.0
    look_seconds: float = 5.0
    health_seconds: float = 25.0
    stale_seconds: float = 60.0
    lost_seconds: float = 60.0
    silent_looks: int = 3
    check_tries: int = 3
    join_seconds: float = 10.0
    backoff_seconds: float = 0.5
    backoff_most_seconds: float = 30.0
    busy_seconds: float = 120.0
    deadline_floor_seconds: float = 300.0
    alarm_seconds: float = 60.0
    settled_seconds: float = 300.0
    breaker_failures: int = 8
    info_seconds: float = 30.0
    fingerprint_seconds: float = 300.0
    watchdog_seconds: float = 5.0

    def backoff(self, times: int) -> float:
        """Return the pause after `times` earlier failures, with up to a fifth of jitter."""
        pause = min(self.backoff_most_seconds, self.backoff_seconds * 2.0 ** min(times, 16))
        return pause * (1.0 - 0.2 * random.random())


@attrs.frozen(slots=True, eq=False)
class FleetSettings:
    """What a fleet is to be.

    Args:
        servers: URLs and policy of the job.
        plan: what every server is asked before it gets a row.
        api_key: bearer token; never shown.
        in_flight: rows in flight per server at first; None: what the server runs.
        sharers: runs that use the servers at once, this one among them: each takes its share of a window.
        patience: time limits.
        lock: server name (`place_of`) to a context that holds the right to restart it across hosts and yields
            its check; None: this host's lock alone.
        log_dir: where restarted servers and restart commands log; None: the system's temporary folder.
    """

    servers: ServersSpec
    plan: ProbePlan
    api_key: str | None = attrs.field(default=None, repr=False)
    in_flight: int | None = None
    sharers: int = 1
    patience: Patience = attrs.field(factory=Patience)
    lock: Callable[[str], AbstractAsyncContextManager[Check]] | None = None
    log_dir: Path | None = None

    @property
    def access(self) -> Access:
        """How its servers are reached."""
        spec = self.servers
        return Access(self.api_key, spec.connect_timeout_seconds, spec.info_timeout_seconds)


def api_key_of(servers: ServersSpec) -> str | None:
    """Return the API key from the environment variable that the job names; None when it names none.

    Raises:
        JobError: the variable is not set here.
    """
    if servers.api_key_env is None:
        return None
    key = os.environ.get(servers.api_key_env)
    if not key:
        raise JobError(f"servers.api_key_env: expected the key in ${servers.api_key_env}, it is not set here")
    note_secret(key)
    return key
