"""One batch on its way through the fleet: where the three rooms meet, row by row.

`dispatch` pulls requests from a lane and hands completions back. The lane keeps each in the journal and asks
the conversations what follows it. So dispatch knows neither templates nor files.
"""

from collections import deque
from collections.abc import Mapping
from types import MappingProxyType

from tasks.records import Completion, Request
from tasks.report import Progress
from tasks.storage.journal import Journal
from tasks.tokens.turns import BatchTurns


class BatchLane:
    """The rows of one batch that are still to be made.

    Args:
        journal: the batch's open journal; its finished rows are not made again.
        turns: the batch's conversations.
        progress: counters of the run.
        partials: committed cut rows to be taken up where they stopped, by row id.
        cap: ids that may be added to each of them.
    """

    def __init__(
        self,
        journal: Journal,
        turns: BatchTurns,
        progress: Progress,
        partials: Mapping[str, Completion] = MappingProxyType({}),
        cap: int = 0,
    ) -> None:
        self._journal = journal
        self._turns = turns
        self._progress = progress
        self._ready: deque[Request] = deque()
        self._open = len(turns.row_ids) - len(journal.done)
        requests, unsent = turns.open({row_id: journal.get(row_id) for row_id in journal.done})
        for request in requests:
            partial = partials.get(request.row_id)
            further = None if partial is None else turns.resume_cut(partial, cap)
            if partial is not None and further is None:  # no room is left: it stays as it is
                self._keep(partial)
            else:
                self._ready.append(further or request)
        for completion in unsent:
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

    def finished(self, completion: Completion) -> None:
        """Keep a completion and queue what follows it: a further round of a cut row, or the next turn."""
        self._progress.generated(completion.output_ids.size)
        settled = self._turns.settle(completion)
        if isinstance(settled, Request):
            self._ready.append(settled)
            return
        self._keep(settled)
        self._progress.made()
        request, unsent = self._turns.follow(settled)
        if request is not None:
            self._ready.append(request)
        for never in unsent:
            self._keep(never)
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
