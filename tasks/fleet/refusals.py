"""What a refusal, or an answer cut on its way, says: of the row, the server, or what stands in front of it.

A refused row is parked only when a control prompt of its length was taken in between: by the server that
refuses it once more, or by both servers that refuse it. A server that refuses the control prompt too refuses
all of that length (a proxy's body limit, say): its rows go elsewhere, and the second time it is closed.

A time limit in front of a server would let short answers through only, so no row is sent again until a short
one fits: the second answer that is cut at the same age closes the server.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import attrs
import numpy as np

from tasks.errors import RowError, ServerError, SurroundingsError
from tasks.fleet.fleet import Fleet
from tasks.fleet.quarantine import Backlog, Row
from tasks.fleet.server import AWAY, CLOSED, Server
from tasks.rows.verdicts import Code

SAME_AGE: Final = 0.1
"""Answers cut at ages that differ by less than this share were cut by one time limit."""

LIMIT_SECONDS: Final = 1.0
"""A younger answer is not cut by a time limit: what stands in front has nobody to ask."""


class Refusals:
    """Decides over refused and cut rows of one dispatch.

    Args:
        fleet: the servers.
        backlog: where rows wait.
        sampling: the job's resolved `sampling_params`.
        vocab_size: ids outside [0, vocab_size) are never sent.
        park: ends a row unsent with code, detail and offset.
        fill: called when a row may be sent again.
    """

    def __init__(
        self,
        fleet: Fleet,
        backlog: Backlog,
        sampling: dict[str, Any],
        vocab_size: int,
        park: Callable[[Row, str, str, int], None],
        fill: Callable[[], None],
    ) -> None:
        self._fleet, self._backlog, self._sampling, self._vocab_size = fleet, backlog, sampling, vocab_size
        self._park, self._fill = park, fill
        self.asking: set[Row] = set()
        """Rows that wait until a control prompt is answered."""

    def refused(self, server: Server, row: Row, error: RowError) -> None:
        """Take in that a server refuses a row."""
        row.failed_at |= {server.url}
        if error.code == Code.BAD_RECORD:  # ours: it was not sent
            self._park(row, error.code, error.message, error.offset)
        elif error.code == Code.PROMPT_TOO_LONG:
            others = [s for s in self._fleet.servers if s.url not in row.failed_at and s.state != CLOSED]
            if any(other.takes(row.request) for other in others):
                self._backlog.put_back(row)
            else:
                self._park(row, error.code, error.message, error.offset)
        else:
            self._backlog.outcomes["refused"] += 1
            self.asking.add(row)
            self._fleet.spawn(self._ask_control(server, row, error))

    async def _ask_control(self, server: Server, row: Row, error: RowError) -> None:
        """Send a prompt of the row's length that no server has a reason to refuse, and decide."""
        size = row.request.input_ids.size
        control = attrs.evolve(
            row.request,
            row_id=f"the control prompt for {row.request.row_id}",
            input_ids=np.resize(self._fleet.settings.plan.input_ids, size),
            max_new_tokens=1,
            logprobs=False,
        )
        try:
            async with asyncio.timeout(server.patience.deadline_floor_seconds):
                await server.client.generate(control, self._sampling, self._vocab_size)
        except RowError as refusal:
            self._refuses_all(server, size, refusal)
            self._backlog.put_back(row)
        except (ServerError, TimeoutError) as trouble:
            told = str(trouble) or "no answer to a control prompt"
            self._fleet.doubt(server, f"{error.message}; then {told}")
            self._backlog.put_back(row)
        except SurroundingsError as trouble:
            self._backlog.put_back(row)
            self._fleet.close(server, trouble)
        else:
            if row.refused:
                self._park(row, error.code, f"{row.refused}; then {error.message}", error.offset)
            else:
                row.refused = error.message
                self._backlog.put_back(row)
        finally:
            self.asking.discard(row)
        self._fill()

    def _refuses_all(self, server: Server, size: int, refusal: RowError) -> None:
        if server.state in (AWAY, CLOSED):
            return  # known of it already
        told = f"it refuses every prompt of {size} ids, a control prompt too: {refusal.message}"
        error = SurroundingsError(
            f"{server.url}: {told}: look at limits of what stands in front of it, such as a body size"
        )
        server.refusing += 1
        if server.refusing > 1:
            self._fleet.close(server, error)
        else:
            self._fleet.evict(server, told, drop=False, error=error)

    def cut(self, server: Server, rows: list[Row]) -> None:
        """Take in that answers were cut on their way although the server lives: their rows are sent again."""
        for row in rows:
            row.failed_at |= {server.url}
            before, age = server.cut_at, row.cut_at or 0.0
            server.cut_at, row.cut_at = age, None
            self._backlog.outcomes["cut"] += 1
            self._backlog.put_back(row)
            server.failures_in_a_row += 1
            if server.failures_in_a_row >= server.patience.breaker_failures:
                told = f"{server.failures_in_a_row} answers were cut in a row"
                self._fleet.evict(server, told, drop=False)
            elif age >= LIMIT_SECONDS and before and abs(before - age) <= SAME_AGE * age:
                self._fleet.close(server, _time_limit(server.url, before, age, row))


def _time_limit(url: str, before: float, age: float, row: Row) -> SurroundingsError:
    return SurroundingsError(
        f"{url}: a time limit in front of it cuts long answers, after {before:.0f} s and {age:.0f} s now "
        f"({row.request.row_id}). Only short ones would come through: raise it above the longest, in nginx "
        "proxy_read_timeout, or send to the server itself"
    )
