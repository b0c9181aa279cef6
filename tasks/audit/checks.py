"""Checks of one batch's decoded rows against the schema, its receipt and its plan entry (pure)."""

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

import attrs
import numpy as np
import orjson

from tasks.audit.report import Check
from tasks.dataset.shard import ShardRows
from tasks.ledger.batch import Batch
from tasks.ledger.receipt import Receipt
from tasks.prompts.interleave import in_batch_order
from tasks.rows.records import Completion, Ragged, Verdict
from tasks.rows.verdicts import NEVER_SENT, Code, accepted_codes

ROW_ID: Final = re.compile(r"([^#~:]+):([^#~:]+)#t(0|[1-9]\d*)~s(0|[1-9]\d*)")
SEGMENT_KINDS: Final = frozenset(
    {"prompt", "opener", "reasoning", "closer", "content", "tool_calls", "end", "unknown"}
)


@attrs.frozen(slots=True, eq=False)
class BatchRows:
    """The decoded files of one batch, with the keys they came from."""

    receipt: Receipt
    shard: ShardRows | None
    rejected: ShardRows | None
    provenance: Sequence[Mapping[str, Any]]
    frequencies: Mapping[int, int] | None

    def parts(self) -> list[tuple[str, ShardRows, bool]]:
        """Return (key, rows, accepted) of shard and rejected file, as far as there are any."""
        entry = self.receipt
        found = []
        if self.shard is not None and entry.shard is not None:
            found.append((entry.shard.key, self.shard, True))
        if self.rejected is not None and entry.rejected is not None:
            found.append((entry.rejected.key, self.rejected, False))
        return found


def check_counts(check: Check, rows: BatchRows) -> None:
    """Compare the receipt's numbers with what lies in the files."""
    receipt = rows.receipt
    verdicts: Counter[str] = Counter()
    for key, part, accepted in rows.parts():
        entry = receipt.shard if accepted else receipt.rejected
        verdicts.update(part.verdicts)
        expected = receipt.rows["accepted" if accepted else "rejected"]
        check.expect(len(part) == expected, key, f"{expected} rows (receipt)", len(part))
        assert entry is not None
        found = (len(part), part.sequences.ids.size)
        check.expect(
            found == (entry.rows, entry.tokens),
            key,
            f"{entry.rows} rows, {entry.tokens} ids (receipt)",
            found,
        )
        if accepted:
            prompt = int(part.prompt_lengths.sum())
            tokens = {"prompt": prompt, "output": int(part.sequences.ids.size - prompt)}
            check.expect(tokens == receipt.tokens, key, f"tokens {dict(receipt.tokens)} (receipt)", tokens)
    check.expect(
        dict(verdicts) == dict(receipt.rows["by_verdict"]),
        receipt.key,
        f"verdicts {dict(receipt.rows['by_verdict'])} (receipt)",
        dict(verdicts),
    )
    if rows.frequencies is not None and rows.shard is not None and receipt.frequencies is not None:
        mask = _output_mask(rows.shard)
        ids, counts = np.unique(rows.shard.sequences.ids[mask], return_counts=True)
        same = list(rows.frequencies.items()) == list(zip(ids.tolist(), counts.tolist(), strict=True))
        check.expect(same, receipt.frequencies.key, "the counts of the shard's output ids", "other counts")


def _output_mask(part: ShardRows) -> np.ndarray[Any, np.dtype[np.bool_]]:
    position = np.arange(part.sequences.ids.size) - np.repeat(
        part.sequences.offsets[:-1], part.sequences.lengths
    )
    return position >= np.repeat(part.prompt_lengths, part.sequences.lengths)


def check_provenance(check: Check, rows: BatchRows) -> None:
    """Every row has one provenance entry, in order, that agrees on whether it was accepted."""
    key = rows.receipt.provenance.key
    expected = {row_id: accepted for _, part, accepted in rows.parts() for row_id in part.row_ids}
    found = {str(row["row_id"]): bool(row["accepted"]) for row in rows.provenance}
    check.expect(len(found) == len(rows.provenance), key, "every row once", "a row twice")
    if not check.expect(
        found == expected, key, "one entry for each row, accepted or not as it lies", "others"
    ):
        for row_id in sorted(found.keys() ^ expected.keys())[:10]:
            check.problem(key, None, f"{row_id} in both", "in one only")
    for _, part, accepted in rows.parts():
        order = [str(row["row_id"]) for row in rows.provenance if bool(row["accepted"]) == accepted]
        check.expect(order == list(part.row_ids), key, "rows in source order", "another order")


def check_row_ids(check: Check, rows: BatchRows, batch: Batch | None) -> None:
    """Row ids are well formed, ordered by record, sample, turn, complete, and as many records as planned."""
    places: list[tuple[str, str, int, int]] = []
    for key, part, _ in rows.parts():
        for index, row_id in enumerate(part.row_ids):
            match = ROW_ID.fullmatch(row_id)
            turn, sample = int(part.turns[index]), int(part.samples[index])
            good = match is not None and (int(match[3]), int(match[4])) == (turn, sample)
            check.expect(good, key, f"<source>:<record>#t{turn}~s{sample}", row_id, index)
    for row in rows.provenance:
        match = ROW_ID.fullmatch(str(row["row_id"]))
        if match is not None:
            places.append((match[1], match[2], int(match[4]), int(match[3])))
    key = rows.receipt.provenance.key
    check.expect(len(set(places)) == len(places), key, "row ids that are unique", "some repeat")
    records = [record for record, _ in itertools.groupby(places, lambda place: place[:2])]
    check.expect(len(set(records)) == len(records), key, "the rows of a record side by side", "some apart")
    for record, group in itertools.groupby(places, lambda place: place[:2]):
        cells = [place[2:] for place in group]
        samples, turns = 1 + max(cell[0] for cell in cells), 1 + max(cell[1] for cell in cells)
        grid = list(itertools.product(range(samples), range(turns)))
        check.expect(cells == grid, key, f"{samples} samples x {turns} turns of {record[1]}, in order", cells)
    if batch is not None:
        _check_records(check, key, [unquote(record[0]) for record in records], batch)


def _check_records(check: Check, key: str, sources: list[str], batch: Batch) -> None:
    spans = [[span.source] * span.records for span in batch.spans]
    planned = in_batch_order(spans, batch.seed, batch.index)
    check.expect(
        sources == planned,
        key,
        f"{len(planned)} records of {dict(Counter(planned))}, in this order (plan)",
        f"{len(sources)} records of {dict(Counter(sources))}",
    )


def check_values(
    check: Check, rows: BatchRows, vocabulary_size: int | None, policy: Mapping[str, str]
) -> None:
    """Ids are in the vocabulary, codes are known and on the right side, segments tile, metadata is JSON."""
    good_codes = accepted_codes(policy.get("accept", "canonical"), policy.get("on_length", "keep"))
    for key, part, accepted in rows.parts():
        ids = part.sequences.ids
        if ids.size:
            high = vocabulary_size if vocabulary_size is not None else 2**31
            check.expect(
                bool(ids.min() >= 0 and ids.max() < high),
                key,
                f"ids in [0, {high})",
                f"{ids.min()}..{ids.max()}",
            )
        for index in range(len(part)):
            _check_row(check, key, part, index, accepted, good_codes)


def _check_row(
    check: Check, key: str, part: ShardRows, index: int, accepted: bool, good_codes: frozenset[Code]
) -> None:
    code, length = part.verdicts[index], int(part.sequences.lengths[index])
    known = code in Code.__members__.values()
    side = "accepts" if accepted else "rejects"
    good = known and (code in good_codes) == accepted
    check.expect(good, key, f"a code that policy {side}", code, index)
    unsent = part.finish_reasons[index] == "unsent"
    check.expect(unsent == (code in NEVER_SENT), key, "finish reason `unsent` for unsent codes", code, index)
    if not unsent or part.segments[index]:
        _check_segments(check, key, part, index)
    stop = part.matched_stops[index]
    if accepted and part.finish_reasons[index] == "stop" and stop is not None:
        last = int(part.sequences.row(index)[-1]) if length else None
        check.expect(last == stop, key, f"last id {stop} (matched stop)", last, index)
    check.expect(not accepted or length > part.prompt_lengths[index], key, "output ids", "none", index)
    try:
        is_object = isinstance(orjson.loads(part.metadata[index]), dict)
    except orjson.JSONDecodeError:
        is_object = False
    check.expect(is_object, key, "metadata as a JSON object", part.metadata[index][:80], index)


def _check_segments(check: Check, key: str, part: ShardRows, index: int) -> None:
    segments = part.segments[index]
    length, boundary = int(part.sequences.lengths[index]), int(part.prompt_lengths[index])
    shown = [(segment.kind, segment.start, segment.stop) for segment in segments]
    tiles = [0, *(s.stop for s in segments)] == [*(s.start for s in segments), length]
    known = {segment.kind for segment in segments} <= SEGMENT_KINDS
    check.expect(tiles and known, key, f"known segments that tile [0, {length})", shown, index)
    prompts = [segment.stop for segment in segments if segment.kind == "prompt"]
    check.expect(
        prompts == [boundary] * (boundary > 0), key, f"a prompt that ends at {boundary}", shown, index
    )


def completions_of(part: ShardRows, provenance: Sequence[Mapping[str, Any]]) -> list[Completion]:
    """Return the rows as completions, each with all its facts from the provenance file."""
    facts = {
        str(row["row_id"]): {**{k: v for k, v in row.items() if k not in ("row_id", "facts")}, **row["facts"]}
        for row in provenance
    }
    return [part.completion(index, facts.get(part.row_ids[index])) for index in range(len(part))]


def check_grammar(check: Check, key: str, part: ShardRows, verdicts: Sequence[Verdict]) -> None:
    """Compare stored codes, offsets and segments with what the grammar says now."""
    for index, verdict in enumerate(verdicts):
        check.expect(
            str(verdict.code) == part.verdicts[index], key, verdict.code, part.verdicts[index], index
        )
        now = [(s.kind, s.start, s.stop) for s in verdict.segments]
        stored = [(s.kind, s.start, s.stop) for s in part.segments[index]]
        check.expect(now == stored, key, f"segments {now}", stored, index)
        if part.offsets is not None:
            check.expect(
                verdict.offset == part.offsets[index],
                key,
                f"offset {verdict.offset}",
                part.offsets[index],
                index,
            )


def inputs_outputs(part: ShardRows) -> tuple[Ragged, Ragged]:
    """Return prompts and outputs as two columns."""
    rows = range(len(part))
    return Ragged.from_rows([part.inputs(r) for r in rows]), Ragged.from_rows([part.outputs(r) for r in rows])
