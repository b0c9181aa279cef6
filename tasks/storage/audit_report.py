"""What an audit found: checks, problems, and one line that says whether the data may be trained on."""

from collections.abc import Mapping
from typing import Any

import attrs

_PROBLEMS_SHOWN = 100


@attrs.frozen(slots=True)
class Problem:
    """One thing that is not as it must be.

    Args:
        object: key of the object.
        row: index of the row in it; None when it is not about a row.
        expected: for a person.
        got: for a person.
    """

    object: str
    row: int | None
    expected: str
    got: str


@attrs.define(slots=True)
class Check:
    """One kind of check: how many things it looked at, and what it found. Keeps the first 100 problems."""

    name: str
    checked: int = 0
    failed: int = 0
    problems: list[Problem] = attrs.field(factory=list)

    def problem(self, key: str, row: int | None, expected: object, got: object) -> None:
        """Note a problem."""
        self.failed += 1
        if len(self.problems) < _PROBLEMS_SHOWN:
            self.problems.append(Problem(key, row, str(expected), str(got)))

    def expect(self, good: bool, key: str, expected: object, got: object, row: int | None = None) -> bool:
        """Count one look; note a problem unless `good`."""
        self.checked += 1
        if not good:
            self.problem(key, row, expected, got)
        return good


@attrs.frozen(slots=True, eq=False)
class AuditReport:
    """The result of an audit; `as_json` is what `rawseq verify --json` prints.

    Args:
        job_id: the job, "" when job.json cannot be read.
        store: its prefix.
        checks: by name, in the order in which they were made.
        rows: totals over the receipts.
        batches: planned and committed.
        orphans: keys that no receipt lists: harmless leftovers of lost races.
    """

    job_id: str
    store: str
    checks: tuple[Check, ...]
    rows: Mapping[str, Any]
    batches: Mapping[str, int]
    orphans: tuple[str, ...]

    @property
    def trainable(self) -> bool:
        """Whether nothing was found wrong and there is something to train on."""
        return not any(check.failed for check in self.checks) and self.rows["accepted"] > 0

    @property
    def reason(self) -> str:
        """One line: trainable or not, and why."""
        wrong = [f"{check.name} ({check.failed})" for check in self.checks if check.failed]
        if wrong:
            first = next(check.problems[0] for check in self.checks if check.problems)
            place = first.object if first.row is None else f"{first.object} row {first.row}"
            return (
                f"not trainable: {', '.join(wrong)}; first: {place}: "
                f"expected {first.expected}, got {first.got}"
            )
        if not self.rows["accepted"]:
            return "not trainable: no accepted row is committed"
        planned, committed = self.batches["planned"], self.batches["committed"]
        part = "all" if planned == committed else f"{committed} of {planned}"
        return f"trainable: {self.rows['accepted']} rows of {part} batches pass {len(self.checks)} checks"

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
            "orphans": list(self.orphans),
        }
