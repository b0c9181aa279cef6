"""How many rows may be in flight on one server, and how that limit adapts to what the server says (pure).

The server should always have a row waiting and never a long queue: waiting rows in
[1, max(4, 2 % of running)]. Idle slots cost throughput; rows in a deep queue could be made elsewhere, and
wait on a server that may go down.

How many rows a server runs is what its KV pool holds of rows like these, and nobody knows that before: SGLang
tells 2,048 to 4,096 slots by default and may run a quarter of them. So a window begins small and grows until
a row waits. What runs swings with the lengths of the rows: the longer no row waited, the larger the steps.

Several runs that share a server need no agreement: each sees the whole queue, moves by its share of what is
wrong, and so together they move as one would. A run in its tail leaves its part to the others.
"""

from math import ceil
from typing import Final

import attrs

from tasks.sglang.info import Loads

DEFAULT_LIMIT: Final = 64
"""Rows in flight at first on a server that does not tell how many it runs (before 0.5.9)."""

HIGHEST_LIMIT: Final = 65_536

FIRST_LIMIT: Final = 256
"""Slots that a server is believed at first, however many it tells; a dozen looks find the others."""

STEP: Final = 12
"""A window grows by a twelfth at the first look at which no row waits, twice as much at each after."""

LARGEST_STEP: Final = 4
"""At most by a quarter, which is what then waits if the pool is full; while it is small, by all of it."""

WARM: Final = 4
"""Looks without a waiting row that a new window is taken to have had."""

FULL_POOL: Final = 0.9
"""Share of the KV pool above which more rows would only be pushed back (SGLang's own tuning guide)."""


@attrs.frozen(slots=True)
class Window:
    """Limit of rows in flight on one server.

    Args:
        limit: rows in flight allowed, >= 1.
        retracted: rows that the server pushed back between its last two log lines: it falls too.
        sharers: runs that use the server at once, this one among them, >= 1.
        idle: looks in a row at which no row waited.
    """

    limit: int
    retracted: int = 0
    sharers: int = 1
    idle: int = WARM


def open_window(wished: int | None, slots: int | None, sharers: int = 1) -> Window:
    """Return the first window: the run's share of the job's wish, else of what it runs, and one more."""
    if wished is None:
        slots = None if slots is None else min(FIRST_LIMIT, slots)
        wished = DEFAULT_LIMIT if slots is None else slots + max(1, slots // 50)
    return Window(ceil(wished / sharers), sharers=sharers)


def queue_target(running: int) -> int:
    """Return the most rows that should wait on a server which runs `running`."""
    return max(4, running // 50)


def on_loads(window: Window, loads: Loads, in_flight: int) -> Window:
    """Return the window after a look at the server.

    Args:
        window: before.
        loads: what the server says.
        in_flight: our rows on it now.
    """
    limit, target, sharers = window.limit, queue_target(loads.running), window.sharers
    floor = max(1, ceil(loads.running / sharers))
    if loads.retracted not in (0, window.retracted):
        limit = min(limit, max(floor, int(limit * 0.9)))
    elif loads.waiting > target:
        limit = min(limit, max(floor, limit - ceil((loads.waiting - target) / sharers)))
    elif loads.waiting == 0 and loads.token_usage < FULL_POOL and in_flight >= limit:
        limit = min(HIGHEST_LIMIT, limit + _growth(window, loads))
    return Window(limit, loads.retracted, sharers, 0 if loads.waiting else window.idle + 1)


def _growth(window: Window, loads: Loads) -> int:
    """Return how many rows more to allow when none waits: our share of the idle slots, at least 2 %.

    At most one step, and not more than the KV pool has room for if they are like those that run; none while
    more of a window is on its way than runs: then we are what is slow, and not the window too small.
    """
    limit, sharers = window.limit, window.sharers
    if limit > 2 * loads.running + queue_target(loads.running):
        return 0
    idle = max(0, (loads.max_running or 0) - loads.running)
    if loads.token_usage > 0.0:
        idle = min(idle, int(loads.running * (FULL_POOL / loads.token_usage - 1.0)))
    largest = limit if limit * sharers < FIRST_LIMIT else limit // LARGEST_STEP
    step = min(largest, max(1, limit // STEP) << min(window.idle, WARM))
    return max(1, limit // 50, min(step, ceil(idle / sharers)))


def on_busy(window: Window) -> Window:
    """Return the window after a server said that it is full (503, 429, 408)."""
    return attrs.evolve(window, limit=max(1, int(window.limit * 0.9)))
