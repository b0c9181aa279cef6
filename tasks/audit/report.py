"""What an audit found: checks, problems, and one line that says whether the data may be trained on."""

from collections.abc import Mapping
from typing import Any

import attrs

from tasks.dataset.scored import Scored
from tasks.store.commands import retry_command

_PROBLEMS_SHOWN = 100


@attrs.frozen(slots=True)
class Problem:
    """One thing that is not as it must be.

    Args:
        object: key of the object.
        row: index of the row in it; None when it is not about a row.
        expected: for a person.
        got: for a person.
        repair: the command that mends it; "" when there is none.
    """

    object: str
    row: int | None
    expected: str
    got: str
    repair: str = ""

    def __str__(self) -> str:
        place = self.object if self.row is None else f"{self.object} row {self.row}"
        mend = f"; repair: {self.repair}" if self.repair else ""
        return f"{place}: expected {self.expected}, got {self.got}{mend}"


@attrs.define(slots=True)
class Check:
    """One kind of check: how many things it looked at, and what it found. Keeps the first 100 problems."""

    name: str
    checked: int = 0
    failed: int = 0
    problems: list[Problem] = attrs.field(factory=list)

    def problem(self, key: str, row: int | None, expected: object, got: object, repair: str = "") -> None:
        """Note a problem."""
        self.failed += 1
        if len(self.problems) < _PROBLEMS_SHOWN:
            self.problems.append(Problem(key, row, str(expected), str(got), repair))

    def expect(
        self,
        good: bool,
        key: str,
        expected: object,
        got: object,
        row: int | None = None,
        repair: str = "",
    ) -> bool:
        """Count one look; note a problem unless `good`."""
        self.checked += 1
        if not good:
            self.problem(key, row, expected, got, repair)
        return good


@attrs.frozen(slots=True, eq=False)
class AuditReport:
    """The result of an audit; `as_json` is what `rawseq verify --json` prints.

    Args:
        job_id: the job, "" when job.json cannot be read.
        store: its prefix.
        typed: as `ObjectStore.typed`, for the command that mends.
        checks: by name, in the order in which they were made.
        rows: totals over the receipts.
        batches: planned and committed.
        orphans: keys that no receipt lists: harmless leftovers of lost races.
        lost: batches some file of which is missing or is not what its receipt says.
        notices: what a person should know though it makes no id wrong, one sentence each.
        rescored: what a server was asked about; None: nothing.
    """

    job_id: str
    store: str
    typed: str
    checks: tuple[Check, ...]
    rows: Mapping[str, Any]
    batches: Mapping[str, int]
    orphans: tuple[str, ...]
    lost: tuple[int, ...] = ()
    notices: tuple[str, ...] = ()
    rescored: Scored | None = None

    @property
    def scored(self) -> Scored:
        """How many of the accepted rows a server scored, and what is therefore not seen."""
        return self.rescored or Scored(int(self.rows["accepted"]))

    @property
    def repair(self) -> str:
        """The command that makes every lost batch again, "" when none is lost."""
        return retry_command(self.typed, self.lost) if self.lost else ""

    @property
    def trainable(self) -> bool:
        """Whether nothing was found wrong and there is something to train on."""
        return not any(check.failed for check in self.checks) and self.rows["accepted"] > 0

    @property
    def reason(self) -> str:
        """One line: trainable or not, why, and how far was looked: *trainable* covers no more."""
        wrong = [f"{check.name} ({check.failed})" for check in self.checks if check.failed]
        if wrong:
            first = next(check.problems[0] for check in self.checks if check.problems)
            return f"not trainable: {', '.join(wrong)}; first: {first}"
        if not self.rows["accepted"]:
            return "not trainable: no accepted row is committed"
        planned, committed = self.batches["planned"], self.batches["committed"]
        part = "all" if planned == committed else f"{committed} of {planned}"
        passed = f"{self.rows['accepted']} rows of {part} batches pass {len(self.checks)} checks"
        return f"trainable: {passed}; {self.scored.sentence()}"

    def as_json(self) -> dict[str, Any]:
        """Return the verb's JSON object."""
        return {
            "job_id": self.job_id,
            "store": self.store,
            "trainable": self.trainable,
            "reason": self.reason,
            "checks": [
                {
                    "name": check.name,
                    "passed": not check.failed,
                    "checked": check.checked,
                    "failed": check.failed,
                    "problems": [attrs.asdict(problem) for problem in check.problems],
                }
                for check in self.checks
            ],
            "batches": dict(self.batches),
            "rows": dict(self.rows),
            "scored": self.scored.as_json(),
            "orphans": list(self.orphans),
            "repair": self.repair,
            "notices": list(self.notices),
        }
