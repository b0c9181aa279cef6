"""What a process runs under beside its command line, folder and environment: kept by a restart, or told.

Niceness, CPUs and resource limits are given to the successor. A memory policy (numactl), a control group and
where its output went are not: they are only seen to differ.
"""

import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import attrs

LIMITS: Final = {
    getattr(resource, name): name for name in reversed(dir(resource)) if name.startswith("RLIMIT_")
}
"""Resource limits of this system by their numbers; of two names for one the first."""


@attrs.frozen(slots=True)
class Conditions:
    """What one process runs under, as far as the system tells.

    Args:
        niceness: from -20 to 19, None if unknown.
        cpus: numbers of the CPUs that it may use, ascending; empty if unknown.
        limits: (number, soft, hard) of each resource limit; empty if unknown.
        memory: its NUMA memory policy as Linux names it, e.g. `bind:0`; "" for the default, or if unknown.
        group: its control groups, a line each; "" if unknown.
        output: what its standard output goes to; "" if unknown.
    """

    niceness: int | None = None
    cpus: tuple[int, ...] = ()
    limits: tuple[tuple[int, int, int], ...] = ()
    memory: str = ""
    group: str = ""
    output: str = ""


def conditions_of(pid: int) -> Conditions:
    """Return what a process runs under; what the system does not tell is left out."""
    proc, found = Path("/proc") / str(pid), Conditions()
    readers: dict[str, Callable[[], Any]] = {
        "niceness": lambda: os.getpriority(os.PRIO_PROCESS, pid),
        "cpus": lambda: tuple(sorted(os.sched_getaffinity(pid))),
        "limits": lambda: tuple((each, *resource.prlimit(pid, each)) for each in sorted(LIMITS)),
        "memory": lambda: _policy(proc / "numa_maps"),
        "group": lambda: (proc / "cgroup").read_text().strip(),
        "output": lambda: os.readlink(proc / "fd" / "1"),
    }
    for name, read in readers.items():
        try:
            found = attrs.evolve(found, **{name: read()})
        except (OSError, AttributeError):  # another system, or not ours to see
            continue
    return found


def not_kept(before: Conditions, now: Conditions, log: Path) -> tuple[str, ...]:
    """Return what the successor of a process runs under otherwise, a phrase each.

    Args:
        before: of the former process.
        now: of the one in its place.
        log: file with the output of that one.
    """
    return tuple(_differences(before, now, log))


def _differences(before: Conditions, now: Conditions, log: Path) -> Iterator[str]:
    if before.niceness != now.niceness:
        yield f"niceness {before.niceness}, now {now.niceness}"
    if before.cpus != now.cpus:
        yield f"CPUs {list(before.cpus)}, now {list(now.cpus)}"
    limits = {number: bounds for number, *bounds in now.limits}
    for number, *bounds in before.limits:
        if number in limits and limits[number] != bounds:
            yield f"{LIMITS[number]} {bounds}, now {limits[number]} (soft, hard)"
    if before.memory != now.memory:
        yield f"memory policy {before.memory or 'default'}, now {now.memory or 'default'}"
    if before.group != now.group:
        yield f"control group {before.group!r}, now {now.group!r}"
    if before.output and before.output != str(log):
        yield f"its output went to {before.output}, now to {log}"


def _policy(maps: Path) -> str:
    """Return the policy in the first line of a `numa_maps`: the whole file costs a walk over all memory."""
    with maps.open() as lines:
        words = lines.readline().split()
    return "" if len(words) < 2 or words[1] == "default" else words[1]
