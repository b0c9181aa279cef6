"""How a window finds its size on a server that does not tell its loads, by what its replies took (pure).

Latency alone says nothing: long answers take long. What is compared is the rate at which a window makes ids,
its rows × ids per second of a row (Little's law), over replies to rows that were sent since it last changed.
More rows are worth it while that rate rises with them; where it does not, they only wait.
"""

from math import sqrt
from typing import Final

import attrs

from tasks.fleet.window import HIGHEST_LIMIT

MORE: Final = 1.5
"""Factor of a trial upwards: what half as many rows again bring stands out from noise."""

FEWER: Final = 0.8
"""Factor of a trial downwards: what it costs while it lasts is a fifth at most."""

WORTH: Final = 0.2
"""Share of the proportional gain that makes more rows worth it: a batch decodes slower the larger it is."""

SLOWER: Final = 0.85
"""Share of its rate below which the search for a window that had settled begins anew."""

HOLD: Final = 24
"""Measures that a settled window stays as it is before more rows are tried again."""

LEAST_ROWS: Final = 32
"""Fewer replies than that are no measure, nor are fewer than two windows of them."""


@attrs.frozen(slots=True)
class Climb:
    """Where the search stands.

    Args:
        limit: the best window so far, which the present one is compared with.
        rate: ids per second that it made; 0.0 when it was not measured yet.
        holds: measures left before more rows are tried; 0 while trials go on.
    """

    limit: int = 1
    rate: float = 0.0
    holds: int = 0


OPENED: Final = Climb(holds=1)
"""At first: the first measure is dropped, for rows that are sent all at once wait less than those after."""

REFUSED: Final = Climb(holds=HOLD)
"""After a 503: the window stays what that made of it for a while."""


@attrs.define(slots=True)
class Replies:
    """Sums over replies to rows that were sent since `since`.

    Args:
        since: monotonic seconds.
        rows: how many.
        ids: output ids in them.
        seconds: their latencies.
        squares: sums of ids², ids × seconds and seconds².
    """

    since: float = 0.0
    rows: int = 0
    ids: int = 0
    seconds: float = 0.0
    squares: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def add(self, ids: int, seconds: float) -> None:
        """Count one reply."""
        self.rows, self.ids, self.seconds = self.rows + 1, self.ids + ids, self.seconds + seconds
        a, b, c = self.squares
        self.squares = a + ids * ids, b + ids * seconds, c + seconds * seconds

    def is_measure(self, limit: int) -> bool:
        """Whether they are enough to judge a window by."""
        return self.rows >= max(LEAST_ROWS, 2 * limit) and self.ids > 0 and self.seconds > 0.0

    @property
    def speed(self) -> float:
        """Ids per second of a row."""
        return self.ids / self.seconds

    @property
    def noise(self) -> float:
        """Relative standard error of `speed`, a ratio of sums: the more rows wait, the more they differ."""
        pace, (a, b, c) = self.seconds / self.ids, self.squares
        return sqrt(max(0.0, c - 2.0 * pace * b + pace * pace * a)) / self.seconds


def on_pace(climb: Climb, limit: int, speed: float, noise: float) -> tuple[int, Climb]:
    """Return the next window and where the search stands then.

    Args:
        climb: before.
        limit: the window while the measured rows were on their way.
        speed: ids per second of a row, > 0.
        noise: relative standard error of it.
    """
    rate = limit * speed
    if climb.rate == 0.0:
        if climb.holds > 0:
            return limit, attrs.evolve(climb, holds=climb.holds - 1)
        return _more(limit), Climb(limit, rate)
    if limit == climb.limit:
        return _settled(climb, limit, rate, noise)
    gain, worth = rate / climb.rate - 1.0, WORTH * (limit / climb.limit - 1.0)
    if limit > climb.limit and gain >= worth + noise:
        return _more(limit), Climb(limit, rate)
    if limit < climb.limit and gain >= worth - 2.0 * noise:
        return _fewer(limit), Climb(limit, rate)
    if limit > climb.limit > 1:
        return _fewer(climb.limit), climb
    return climb.limit, attrs.evolve(climb, holds=HOLD)


def _settled(climb: Climb, limit: int, rate: float, noise: float) -> tuple[int, Climb]:
    if rate < (SLOWER - 2.0 * noise) * climb.rate:
        return limit, OPENED
    if climb.holds > 0:
        return limit, attrs.evolve(climb, holds=climb.holds - 1)
    return _more(limit), Climb(limit, rate)


def _more(limit: int) -> int:
    return min(HIGHEST_LIMIT, max(limit + 1, int(limit * MORE)))


def _fewer(limit: int) -> int:
    return max(1, int(limit * FEWER))
