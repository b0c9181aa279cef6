"""Index, card and page of a dataset, complete or not: blocking, for the last step of a run and for a verb.

Every receipt is read for totals; what needs rows is measured on a sample of batches, one file in memory at a
time.
"""

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import orjson

from tasks.dataset.shard_reader import decode_provenance, decode_rejected, decode_shard
from tasks.dataset.stored import job_of, job_record, vocabulary_of
from tasks.errors import DataError
from tasks.ledger.ledger import Ledger
from tasks.ledger.noted_servers import noted_servers
from tasks.ledger.receipt import FileEntry, Receipt
from tasks.report.card import dataset_card
from tasks.report.code_version import code_version
from tasks.report.index import dataset_index
from tasks.report.measured import Measured
from tasks.report.numbers import answer_warning
from tasks.report.retokenized import Retokenized, retokenize
from tasks.report.sample import SAMPLE_BYTES, sampled_batches
from tasks.report.summary import Summary
from tasks.store.contract import ObjectStore, sha256_hex
from tasks.tokenizer.vocabulary import Vocabulary


@attrs.frozen(slots=True)
class Published:
    """What was written, for the person who waits: where the page is, and what it warns of."""

    report: str
    warning: str
    retokenized: Retokenized
    sampled: int
    unreadable: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON-able data."""
        return {
            "report": self.report,
            "warning": self.warning,
            "retokenized": {"rows": self.retokenized.rows, "changed": self.retokenized.changed},
            "sampled_batches": self.sampled,
            "unreadable": list(self.unreadable),
        }

    def markdown(self) -> str:
        """Return it for the UI: where the page is, with a link where a browser can follow one."""
        link = (
            f"[{self.report}]({Path(self.report).as_uri()})" if self.report.startswith("/") else self.report
        )
        return "\n\n".join([f"**Report** {link}", *self.lines()[1:]])

    def lines(self) -> list[str]:
        """Return it as lines for a person."""
        lines = [f"report  {self.report}", f"raw ids {self.retokenized.sentence()}"]
        lines += [f"warning {self.warning}"] if self.warning else []
        return lines + [f"unread  {line}" for line in self.unreadable]


def publish_store(store: ObjectStore) -> tuple[Summary, Published]:
    """Publish what a store has committed so far.

    Raises:
        IdentityError: the tokenizer that loads here is not the one that made the dataset.
        DataError: a part of the plan is gone, or a receipt is damaged.
    """
    job, vocabulary = job_record(store), vocabulary_of(store)
    ledger = Ledger(store, job["job_id"])
    receipts = ledger.receipts()
    total = len(ledger.plan_of(receipts).batches)
    totals = ledger.fold(receipts)
    summary = Summary(
        job_id=ledger.job_id,
        store=store.uri,
        batches_total=total,
        batches_committed=len(receipts),
        batches_skipped=total,
        failures=(),
        rows=totals.rows,
        tokens=totals.tokens,
        accepted_floor=job_of(store).policy.accepted_floor,
        generated_rows=0,
        generated_tokens=0,
        seconds=0.0,
    )
    return summary, publish_dataset(store, vocabulary, job, summary, receipts)


def publish_dataset(
    store: ObjectStore,
    vocabulary: Vocabulary,
    job: Mapping[str, Any],
    summary: Summary,
    receipts: Mapping[int, Receipt],
    most_bytes: int = SAMPLE_BYTES,
) -> Published:
    """Write `dataset.json`, `README.md` and `report.html`; a damaged file is named in them, not fatal.

    Args:
        store: the job's own prefix.
        vocabulary: of the job.
        job: `job.json`.
        summary: totals.
        receipts: the counting receipts.
        most_bytes: of files that are read for the sample.
    """
    from tasks.report.page import report_page  # matplotlib takes half a second to import

    sample = sampled_batches(receipts, most_bytes)
    measured = measure(store, sample, vocabulary.size)
    retokenized = retokenize(measured.outputs, vocabulary.decode, vocabulary.dialect.encode)
    index = dataset_index(summary, receipts, job, noted_servers(store), retokenized, code_version())
    warning = answer_warning(measured.supervised)
    card = dataset_card(index, retokenized.sentence(), warning)
    page = report_page(index, measured, len(sample), retokenized, vocabulary.decode)
    store.put("dataset.json", orjson.dumps(index, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2))
    store.put("README.md", card.encode())
    store.put("report.html", page.encode())
    report = f"{store.uri}/report.html"
    return Published(report, warning, retokenized, len(sample), tuple(measured.unreadable))


def measure(store: ObjectStore, sample: Sequence[Receipt], size: int) -> Measured:
    """Count over the files of some batches, of which one is in memory at a time."""
    measured = Measured(size)
    for receipt in sample:
        for kind, entry in receipt.files().items():
            try:
                _measure_file(store, kind, entry, measured)
            except DataError as error:
                measured.unreadable.append(str(error))
    return measured


def _measure_file(store: ObjectStore, kind: str, entry: FileEntry, measured: Measured) -> None:
    if kind == "frequencies":  # counted from the rows themselves
        return
    data = store.get(entry.key)
    if sha256_hex(data) != entry.sha256:
        raise DataError(f"{store.uri}/{entry.key}: expected sha256 {entry.sha256}, got {sha256_hex(data)}")
    if kind == "provenance":
        measured.add_provenance(decode_provenance(data, entry.key))
        return
    rows = (decode_shard if kind == "shard" else decode_rejected)(data, entry.key)
    order = np.random.default_rng(zlib.crc32(entry.sha256.encode())).permutation(len(rows))
    measured.add(rows, order.tolist())
