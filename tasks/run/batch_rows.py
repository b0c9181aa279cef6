"""One batch on its way through the fleet: where the three rooms meet, row by row.

`dispatch` pulls requests from a lane and hands completions back. The lane keeps each in the journal and asks
the conversations what follows it. So dispatch knows neither templates nor files.
"""

from collections import deque
from collections.abc import Awaitable, Mapping, Sequence
from types import MappingProxyType

from tasks.ledger.journal import Journal
from tasks.rows.records import Completion, Request
from tasks.run.progress import Progress
from tasks.run.rendering import Renderers
from tasks.turns.next_turn import Step, Work
from tasks.turns.turns import BatchTurns


class BatchLane:
    """The rows of one batch that are still to be made: `opening`, then `open`.

    Args:
        journal: the batch's open journal; its finished rows are not made again.
        turns: the batch's conversations.
        progress: counters of the run.
        renderers: where prompts are rendered.
    """

    def __init__(self, journal: Journal, turns: BatchTurns, progress: Progress, renderers: Renderers) -> None:
        self._journal = journal
        self._turns = turns
        self._progress = progress
        self._renderers = renderers
        self._ready: deque[Request] = deque()
        self._open = len(turns.row_ids) - len(journal.done)

    def opening(self) -> list[Work]:
        """Read the journal back; return the work that leads to each conversation's next request."""
        return self._turns.opening({name: self._journal.get(name) for name in self._journal.done})

    def open(
        self,
        works: Sequence[Work],
        steps: Sequence[Step],
        partials: Mapping[str, Completion] = MappingProxyType({}),
        cap: int = 0,
    ) -> None:
        """Make the next requests ready; rows that nobody can make go into the journal.

        Args:
            works: what `opening` gave.
            steps: where they led.
            partials: committed cut rows to be taken up where they stopped, by row id.
            cap: ids that may be added to each of them.
        """
        requests, unsent = self._turns.took(works, steps)
        for request in requests:
            partial = partials.get(request.row_id)
            further = None if partial is None else self._turns.resume_cut(partial, cap)
            if partial is not None and further is None:  # no room is left: it stays as it is
                self._keep(partial)
            else:
                self._ready.append(further or request)
        for completion in unsent:
            if completion.row_id not in self._journal.done:
                self._keep(completion)

    @property
    def done(self) -> bool:
        """Whether every row of the batch is in the journal."""
        return self._open == 0

    @property
    def ready(self) -> int:
        """Requests that wait to be taken."""
        return len(self._ready)

    def take(self) -> Request | None:
        """Return the next request, or None when none is ready now (a turn may follow one in flight)."""
        return self._ready.popleft() if self._ready else None

    def finished(self, completion: Completion) -> Awaitable[None] | None:
        """Keep a completion; what follows becomes ready at once, or (a next turn) with what is returned."""
        self._progress.generated(completion.output_ids.size)
        settled = self._turns.settle(completion)
        if isinstance(settled, Request):  # a further round of a cut row
            self._ready.append(settled)
            return None
        self._keep(settled)
        self._progress.made()
        work = self._turns.following(settled)
        return None if work is None else self._follow(work)

    async def _follow(self, work: Work) -> None:
        steps = await self._renderers.run(self._turns.rules, [work])
        requests, unsent = self._turns.took([work], steps)
        self._ready += requests
        for completion in unsent:
            self._keep(completion)
        self._progress.refused(len(unsent))

    def attempt_failed(self, request: Request, outcome: str, alone: bool) -> None:
        """Note a failed attempt that counts against the row, across restarts."""
        self._journal.note_attempt(request.row_id, outcome, alone)

    def attempts(self, row_id: str) -> int:
        """Return the failed attempts that count against a row, over all runs."""
        return self._journal.attempts.get(row_id, 0)

    def _keep(self, completion: Completion) -> None:
        self._journal.append(completion)
        self._open -= 1
