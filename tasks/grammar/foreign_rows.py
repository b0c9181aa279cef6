"""Token data from anywhere as rows that the checker can judge: what `rawseq check` reads."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tasks.errors import DataError
from tasks.grammar.grammar import Grammar
from tasks.rows.records import Completion, Ids, as_ids

FORMS = "prompt_ids + output_ids, input_ids + prompt_length, or input_ids + loss_mask"


def bare_completion(grammar: Grammar, row_id: str, prompt: Ids, output: Ids) -> Completion:
    """Return a completion of which only the ids are known.

    A row that ends with an end id stopped there; any other is taken for one that was cut.
    """
    ended = output.size > 0 and int(output[-1]) in grammar.end_ids
    return Completion(
        row_id, prompt, output, "stop" if ended else "length", int(output[-1]) if ended else None
    )


def foreign_completion(grammar: Grammar, row_id: str, record: Mapping[str, Any]) -> Completion:
    """Return one record of somebody's token data as a completion.

    Args:
        grammar: of the tokenizer that the data is said to be of.
        row_id: for reports: `file:line`, or the record's own id.
        record: with `prompt_ids` and `output_ids`; or `input_ids` and `prompt_length`; or `input_ids` and
            `loss_mask`, whose first supervised position starts the output. `finish_reason`,
            `completion_tokens` and `prompt_tokens` count where they are given.

    Raises:
        DataError: when the record is none of these, or its ids are no integers.
    """
    prompt, output = _split(row_id, record)
    bare = bare_completion(grammar, row_id, prompt, output)
    finish = record.get("finish_reason")
    counts = ("completion_tokens", "prompt_tokens")
    facts = {name: record[name] for name in counts if isinstance(record.get(name), int)}
    if finish not in ("stop", "length"):
        finish = bare.finish_reason
    return Completion(
        row_id, prompt, output, finish, bare.matched_stop if finish == "stop" else None, facts=facts
    )


def _split(row_id: str, record: Mapping[str, Any]) -> tuple[Ids, Ids]:
    if record.get("prompt_ids") is not None and record.get("output_ids") is not None:
        return _ids(row_id, record, "prompt_ids"), _ids(row_id, record, "output_ids")
    if record.get("input_ids") is None:
        raise DataError(f"{row_id}: expected {FORMS}, got the fields {sorted(record)}")
    ids = _ids(row_id, record, "input_ids")
    if record.get("prompt_length") is not None:
        cut = record["prompt_length"]
    elif record.get("loss_mask") is not None:
        mask = np.asarray(record["loss_mask"])
        if mask.shape != ids.shape:
            raise DataError(f"{row_id}: {ids.size} input_ids but a loss_mask of shape {mask.shape}")
        supervised = np.flatnonzero(mask)
        cut = int(supervised[0]) if supervised.size else ids.size
    else:
        raise DataError(f"{row_id}: expected {FORMS}, got the fields {sorted(record)}")
    if not isinstance(cut, (int, np.integer)) or not 0 <= cut <= ids.size:
        raise DataError(f"{row_id}: expected prompt_length in [0, {ids.size}], got {cut!r}")
    return ids[:cut], ids[cut:]


def _ids(row_id: str, record: Mapping[str, Any], field: str) -> Ids:
    try:
        return as_ids(record[field])
    except (TypeError, ValueError) as error:
        raise DataError(f"{row_id}: {field}: {error}") from error
