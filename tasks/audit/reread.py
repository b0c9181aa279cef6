"""The audit: everything that the ledger claims, read back and checked, a few batches in memory."""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from pydantic import ValidationError

from tasks.audit import checks as audit_rows
from tasks.audit.checks import BatchRows
from tasks.audit.files import Fetched, decode_files, fetch_files
from tasks.audit.report import AuditReport, Check
from tasks.dataset.shard import ShardRows
from tasks.errors import DataError
from tasks.job.spec import JobSpec
from tasks.ledger.batch import Batch
from tasks.ledger.ledger import Ledger
from tasks.ledger.plan import Plan
from tasks.ledger.receipt import FOLDERS, Receipt, fold, parse_receipt_key, receipt_bytes
from tasks.rows.hash_set import HashSet
from tasks.rows.records import Completion, Ragged, Verdict
from tasks.rows.repeats import MASK, HashSpill
from tasks.store.contract import ObjectStore, canonical, sha256_hex

RowCheck = Callable[[Ragged, Ragged, Sequence[Completion]], Sequence[Verdict]]
"""The grammar, handed in: prompts, outputs and completions of a file to one verdict a row."""

_AHEAD = 8
"""Batches whose files are fetched while earlier ones are checked."""

_NAMES = (
    "job",
    "plan",
    "receipts",
    "objects",
    "counts",
    "provenance",
    "row_ids",
    "unique",
    "values",
    "grammar",
)


def audit(
    store: ObjectStore,
    check: RowCheck | None = None,
    see: Callable[[BatchRows], None] | None = None,
    earlier: Sequence[RowCheck] = (),
) -> AuditReport:
    """Check a job's prefix: receipts, files, digests, schemas, counts, plan, row ids, values, grammar.

    Args:
        store: the job's own prefix.
        check: the grammar of the job's tokenizer; None leaves that check out.
        see: takes the rows of each committed batch whose files are whole, in batch order, once.
        earlier: the same grammar by the rules of earlier versions: a verdict that these gave is no problem,
            only told.

    Raises:
        SurroundingsError: the store cannot be read. What is wrong with the data is reported, never raised.
    """
    return _Audit(store, check, see, earlier).run()


class _Audit:
    def __init__(
        self,
        store: ObjectStore,
        row_check: RowCheck | None,
        see: Callable[[BatchRows], None] | None,
        earlier: Sequence[RowCheck],
    ) -> None:
        self._store = store
        self._row_check, self._earlier = row_check, earlier
        self._outdated: Counter[tuple[str, str]] = Counter()
        self._see = see
        self._lost: list[int] = []
        self._checks = {name: Check(name) for name in _NAMES}
        self._job: dict[str, Any] = {}
        self._ledger = Ledger(store, "")
        self._listed = HashSet()
        self._seen = HashSpill()
        if row_check is None:
            del self._checks["grammar"]

    def run(self) -> AuditReport:
        plan = self._read_plan()
        with self._seen:
            totals = fold(self._receipts(plan))
            self._check_unique()
        self._checks["plan"].expect(
            totals.batches <= len(plan.batches),
            "receipts/",
            f"at most {len(plan.batches)} batches",
            totals.batches,
        )
        return AuditReport(
            job_id=self._ledger.job_id,
            store=self._store.uri,
            typed=self._store.typed,
            checks=tuple(self._checks.values()),
            rows=totals.rows,
            batches={"planned": len(plan.batches), "committed": totals.batches},
            orphans=tuple(self._orphans()),
            lost=tuple(self._lost),
            notices=tuple(
                f"grammar: {count} rows are stored as {stored}, by a rule of an earlier version; today: {now}"
                for (stored, now), count in sorted(self._outdated.items())
            ),
        )

    def _read_plan(self) -> Plan:
        check = self._checks["job"]
        try:
            self._job = self._ledger.job()
            self._ledger.job_id = self._job["job_id"]
            named = JobSpec.model_validate(self._job.get("spec")).job_id
            check.expect(
                named == self._job["job_id"], "job.json", f"job_id {named} (spec)", self._job["job_id"]
            )
        except DataError as error:
            check.problem("job.json", None, "a job", error)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            check.problem("job.json", None, "a job's spec", f"spec.{place}: {first['msg']}")
        try:
            plan = self._ledger.plan()
        except DataError as error:
            self._checks["plan"].problem("plan/", None, "a readable plan", error)
            return Plan(self._ledger.job_id)
        self._checks["plan"].checked += plan.sequences
        listed = {info.key for info in self._store.list("plan/")}
        found = {f"plan/{number:06d}.json" for number in range(plan.sequences)}
        self._checks["plan"].expect(
            listed == found, "plan/", "no gap in the plan objects", sorted(listed - found)
        )
        return plan

    def _receipts(self, plan: Plan) -> Iterator[Receipt]:
        """Check every receipt and, a few ahead, read the files of those that count; yield these."""
        with ThreadPoolExecutor(_AHEAD, thread_name_prefix="rawseq-audit") as pool:
            waiting: deque[tuple[Receipt, Future[Fetched]]] = deque()
            for receipt in self._counting(plan):
                waiting.append((receipt, pool.submit(fetch_files, self._store, receipt)))
                if len(waiting) > _AHEAD:
                    yield self._checked(plan, *waiting.popleft())
            while waiting:
                yield self._checked(plan, *waiting.popleft())

    def _checked(self, plan: Plan, receipt: Receipt, fetched: "Future[Fetched]") -> Receipt:
        rows = decode_files(self._checks["objects"], receipt, fetched.result(), self._store.typed)
        if rows is None:
            self._lost.append(receipt.batch)
            return receipt
        self._check_batch(rows, _planned(plan, receipt.batch))
        if self._see is not None:
            self._see(rows)
        return receipt

    def _counting(self, plan: Plan) -> Iterator[Receipt]:
        """Check every receipt; yield the highest generation of each batch."""
        check = self._checks["receipts"]
        counting = self._ledger.committed()
        generations: dict[int, int] = {}
        for info in self._store.list("receipts/"):
            place = parse_receipt_key(info.key)
            if not check.expect(place is not None, info.key, "a receipt's name", info.key) or place is None:
                continue
            generations[place[0]] = generations.get(place[0], 0) + 1
            receipt = self._one_receipt(*place, plan)
            if receipt is None:
                continue
            self._listed.update(entry.key for entry in receipt.files().values())
            if counting[place[0]] == place[1]:
                yield receipt
        for batch, count in generations.items():
            check.expect(
                count == counting[batch] + 1,
                f"receipts/{batch:06d}",
                f"generations 0 to {counting[batch]}",
                f"{count} of them",
            )

    def _one_receipt(self, batch: int, generation: int, plan: Plan) -> Receipt | None:
        check = self._checks["receipts"]
        try:
            receipt = self._ledger.receipt(batch, generation)
        except DataError as error:
            check.problem(f"receipts/{batch:06d}.g{generation}.json", None, "a receipt", error)
            return None
        stored = self._store.get(receipt.key)
        check.expect(stored == receipt_bytes(receipt), receipt.key, "canonical JSON", "other spelling")
        planned = _planned(plan, batch)
        ours = (receipt.start, receipt.stop, receipt.fingerprint)
        theirs = (planned.start, planned.stop, planned.fingerprint) if planned else None
        self._checks["plan"].expect(ours == theirs, receipt.key, f"{theirs} (plan)", ours)
        self._check_identity(receipt)
        return receipt

    def _check_identity(self, receipt: Receipt) -> None:
        if not self._job:
            return
        resolved = self._job["resolved"]
        expected = sha256_hex(canonical(resolved))
        check = self._checks["job"]
        check.expect(
            receipt.resolved_sha256 == expected,
            receipt.key,
            f"resolved_sha256 {expected} (job.json)",
            receipt.resolved_sha256,
        )
        template = resolved.get("tokenizer", {}).get("template_sha256", receipt.template_sha256)
        check.expect(
            receipt.template_sha256 == template,
            receipt.key,
            f"template_sha256 {template} (job.json)",
            receipt.template_sha256,
        )

    def _check_batch(self, rows: BatchRows, planned: Batch | None) -> None:
        checks = self._checks
        audit_rows.check_counts(checks["counts"], rows)
        audit_rows.check_provenance(checks["provenance"], rows)
        audit_rows.check_row_ids(checks["row_ids"], rows, planned)
        size = self._job.get("resolved", {}).get("tokenizer", {}).get("size")
        policy = self._job.get("spec", {}).get("policy", {})
        audit_rows.check_values(checks["values"], rows, size, policy)
        for key, part, _ in rows.parts():
            for row_id in part.row_ids:
                self._seen.add(hash(row_id))
            checks["unique"].checked += len(part)
            if self._row_check is not None:
                audit_rows.check_grammar(checks["grammar"], key, part, self._verdicts(rows, part))

    def _verdicts(self, rows: BatchRows, part: ShardRows) -> Sequence[Verdict]:
        """Return the verdicts of today, of rows that an earlier rule judged otherwise those of that rule."""
        assert self._row_check is not None
        completions = audit_rows.completions_of(part, rows.provenance)
        inputs, outputs = audit_rows.inputs_outputs(part)
        verdicts = list(self._row_check(inputs, outputs, completions))
        other = [row for row, verdict in enumerate(verdicts) if str(verdict.code) != part.verdicts[row]]
        for check in self._earlier:
            some = [completions[row] for row in other]
            earlier = check(inputs.take(other), outputs.take(other), some)
            for row, was in zip(other, earlier, strict=True):
                if str(was.code) == part.verdicts[row]:
                    self._outdated[str(was.code), str(verdicts[row].code)] += 1
                    verdicts[row] = was
            other = [row for row in other if str(verdicts[row].code) != part.verdicts[row]]
        return verdicts

    def _check_unique(self) -> None:
        suspects = self._seen.repeated()
        if not suspects:
            return
        first: dict[str, str] = {}
        for receipt in self._ledger.iter_receipts():
            rows = decode_files(Check("again"), receipt, fetch_files(self._store, receipt), self._store.typed)
            for key, part, _ in rows.parts() if rows else ():
                for index, row_id in enumerate(part.row_ids):
                    if hash(row_id) & MASK not in suspects:
                        continue
                    if row_id in first:
                        self._checks["unique"].problem(
                            key, index, f"{row_id} once", f"again ({first[row_id]})"
                        )
                    first.setdefault(row_id, key)

    def _orphans(self) -> Iterator[str]:
        for folder in FOLDERS.values():
            for info in self._store.list(f"{folder}/"):
                if info.key not in self._listed:
                    yield info.key


def _planned(plan: Plan, index: int) -> Batch | None:
    return plan.batches[index] if index < len(plan.batches) else None
