"""A row for people and for `--json`: what would be sent, and what was judged."""

from collections.abc import Sequence
from typing import Any

from tasks.grammar.grammar import Grammar
from tasks.rows.records import Completion, Request, Verdict
from tasks.tokenizer.vocabulary import Vocabulary


def describe_request(vocabulary: Vocabulary, grammar: Grammar, request: Request) -> dict[str, Any]:
    """Return what `rawseq render` prints of a row that would be sent: one JSON-able object."""
    tail = grammar.tail_of(request.input_ids)
    return {
        "row_id": request.row_id,
        "input_ids": request.input_ids.tolist(),
        "text": vocabulary.decode(request.input_ids.tolist()),
        "tail": {
            "ids": tail.ids.tolist() if tail else [],
            "names": [vocabulary.name_of(id) for id in tail.ids.tolist()] if tail else [],
            "mode": tail.mode if tail else None,
        },
        "control_tokens": control_tokens(vocabulary, request.input_ids.tolist()),
        "max_new_tokens": request.max_new_tokens,
        "seed": request.seed,
        "sampling": request.sampling,
    }


def describe_refusal(row: Completion) -> dict[str, Any]:
    """Return what `rawseq render` prints of a row that would not be sent, and why."""
    return {
        "row_id": row.row_id,
        "input_ids": row.input_ids.tolist(),
        "refused": {"code": row.code, "offset": row.code_offset, "detail": row.detail},
    }


def describe_verdict(row_id: str, verdict: Verdict) -> dict[str, Any]:
    """Return what `rawseq check` prints of a row: one JSON-able object."""
    return {
        "row_id": row_id,
        "verdict": str(verdict.code),
        "offset": verdict.offset,
        "detail": verdict.detail,
        "segments": [{"kind": s.kind, "start": s.start, "stop": s.stop} for s in verdict.segments],
    }


def control_tokens(vocabulary: Vocabulary, ids: Sequence[int]) -> list[dict[str, Any]]:
    """Return every control token in `ids` with its place."""
    names = {id: text for text, id in vocabulary.control_ids.items()}
    return [{"at": at, "id": id, "token": names[id]} for at, id in enumerate(ids) if id in names]
