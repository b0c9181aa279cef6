"""Token data from anywhere as rows that the checker can judge: what `rawseq check` reads."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tasks.errors import DataError
from tasks.grammar.check import bare_completion
from tasks.grammar.grammar import Grammar
from tasks.grammar.spans import spans_of
from tasks.rows.records import Completion, Ids, as_ids

FORMS = "prompt_ids + output_ids, input_ids + prompt_length, or input_ids + loss_mask"


def foreign_completions(grammar: Grammar, row_id: str, record: Mapping[str, Any]) -> list[Completion]:
    """Return the outputs of one record of somebody's token data as completions: one, or one per turn.

    Args:
        grammar: of the tokenizer that the data is said to be of.
        row_id: for reports: `file:line`, or the record's own id.
        record: with `prompt_ids` and `output_ids`; or `input_ids` and `prompt_length` or `loss_mask`, whose
            supervised spans are each an output behind all that stands in front of it. `finish_reason`,
            `completion_tokens` and `prompt_tokens` count where they are given and the output is one.

    Raises:
        DataError: when the record is none of these, or its ids are no integers.
    """
    pairs = _pairs(grammar, row_id, record)
    bare = [bare_completion(grammar, row_id, prompt, output) for prompt, output in pairs]
    return [_with_facts(row_id, bare[0], record)] if len(bare) == 1 else bare


def _with_facts(row_id: str, bare: Completion, record: Mapping[str, Any]) -> Completion:
    finish = record.get("finish_reason")
    counts = ("completion_tokens", "prompt_tokens")
    facts = {name: record[name] for name in counts if _is_count(record.get(name))}
    if finish not in ("stop", "length"):
        finish = bare.finish_reason
    matched = bare.matched_stop if finish == "stop" else None
    return Completion(row_id, bare.input_ids, bare.output_ids, finish, matched, facts=facts)


def _pairs(grammar: Grammar, row_id: str, record: Mapping[str, Any]) -> list[tuple[Ids, Ids]]:
    if record.get("prompt_ids") is not None and record.get("output_ids") is not None:
        return [(_ids(row_id, record, "prompt_ids"), _ids(row_id, record, "output_ids"))]
    length, mask = record.get("prompt_length"), record.get("loss_mask")
    if record.get("input_ids") is None or (length is None and mask is None):
        raise DataError(f"{row_id}: expected {FORMS}, got the fields {sorted(record)}")
    ids = _ids(row_id, record, "input_ids")
    if mask is not None:
        mask = np.asarray(mask)
        if mask.shape != ids.shape or (mask.size and mask.dtype.kind not in "biuf"):
            came = f"a loss_mask of shape {mask.shape} and {mask.dtype}"
            raise DataError(f"{row_id}: {ids.size} input_ids but {came}: expected a number for each")
        mask = mask != 0
    if length is not None and (not _is_count(length) or length > ids.size):
        raise DataError(f"{row_id}: expected prompt_length in [0, {ids.size}], got {length!r}")
    return [(ids[:start], ids[start:stop]) for start, stop in spans_of(grammar, ids, mask, length)]


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _ids(row_id: str, record: Mapping[str, Any], field: str) -> Ids:
    values = record[field]
    if isinstance(values, list) and bool in set(map(type, values)):
        at = next(at for at, value in enumerate(values) if isinstance(value, bool))
        raise DataError(f"{row_id}: {field}: token ids must be integers, got {values[at]} at {at}")
    try:
        return as_ids(values)
    except (TypeError, ValueError) as error:
        raise DataError(f"{row_id}: {field}: {error}") from error
