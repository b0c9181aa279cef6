"""How a run ended: totals and the closing table."""

from collections.abc import Mapping
from typing import Any

import attrs

from tasks.rows.verdicts import Code, kind_of


@attrs.frozen(slots=True)
class Summary:
    """How a run ended; `as_json` is the verbs' JSON (keys in the schema page)."""

    job_id: str
    store: str
    batches_total: int
    batches_committed: int
    batches_skipped: int
    failures: tuple[tuple[int, str], ...]
    rows: Mapping[str, Any]
    tokens: Mapping[str, int]
    accepted_floor: float
    generated_rows: int
    generated_tokens: int
    seconds: float

    @property
    def accepted_share(self) -> float:
        """Accepted rows over all committed rows but duplicates, which are left out on purpose; 1 for none."""
        total = int(self.rows["total"]) - int(self.rows["by_verdict"].get(Code.DUPLICATE, 0))
        return int(self.rows["accepted"]) / total if total else 1.0

    @property
    def problem(self) -> str:
        """Why the run is not complete, or "" when it is."""
        missing = self.batches_total - self.batches_committed
        if missing:
            named = ", ".join(str(batch) for batch, _ in self.failures[:10])
            return f"{missing} of {self.batches_total} batches are not committed" + (
                f": {named}" if named else ""
            )
        if self.accepted_share < self.accepted_floor:
            share, floor = self.accepted_share, self.accepted_floor
            return f"accepted share {share:.4f} is below policy.accepted_floor {floor}"
        return ""

    def as_json(self) -> dict[str, Any]:
        """Return the object that `run` and `demo` print with `--json`."""
        return {
            "job_id": self.job_id,
            "store": self.store,
            "state": "failed" if self.problem else "complete",
            "problem": self.problem,
            "batches": {
                "total": self.batches_total,
                "committed": self.batches_committed,
                "skipped": self.batches_skipped,
                "failed": len(self.failures),
            },
            "rows": dict(self.rows),
            "tokens": dict(self.tokens),
            "accepted_share": round(self.accepted_share, 6),
            "generated_rows": self.generated_rows,
            "generated_tokens": self.generated_tokens,
            "seconds": round(self.seconds, 3),
            "failed_batches": [{"batch": batch, "error": error} for batch, error in self.failures],
        }


def verdict_rows(by_verdict: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the closing table: one row per code that occurs, canonical first, with kind, rows and share."""
    total = sum(by_verdict.values()) or 1
    order = {code.value: index for index, code in enumerate(Code)}
    return [
        {"verdict": code, "kind": kind_of(Code(code)), "rows": count, "share": f"{count / total:.2%}"}
        for code, count in sorted(by_verdict.items(), key=lambda item: order[item[0]])
    ]
