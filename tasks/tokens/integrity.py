"""Whether what came is what the model made: counts, range, the end. By ids and the server's own account."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tasks.records import Completion, Ids
from tasks.verdicts import Code

if TYPE_CHECKING:
    from tasks.tokens.grammar import Grammar

Fault = tuple[Code, int, str]


def integrity_fault(
    grammar: Grammar, base: int, output: Ids, completion: Completion, first_foreign: int
) -> Fault | None:
    """Return (code, offset into prompt + output, detail) of the first integrity fault, None when intact."""
    facts, finish = completion.facts, completion.finish_reason
    served = facts.get("finish_reason")
    served = served if isinstance(served, Mapping) else {}
    matched = served.get("matched")
    if (isinstance(matched, str) and "nan" in matched.lower()) or finish == "nan":
        return (
            Code.NAN,
            -1,
            f"the server says {matched!r}: its sampler saw NaN and put an end id in its place",
        )
    if finish not in ("stop", "length"):
        return Code.ABORTED, -1, f"expected finish stop or length, got {finish!r}"
    if output.size == 0:
        return Code.NO_OUTPUT, base, "expected at least one output id, got none"
    counted = facts.get("completion_tokens")
    if counted is not None and counted != output.size:
        return Code.COUNT_MISMATCH, -1, f"the server counted {counted} output ids, {output.size} came"
    counted = facts.get("prompt_tokens")
    if counted is not None and counted != base:
        return Code.PROMPT_MISMATCH, -1, f"the server counted {counted} prompt ids, {base} were sent"
    if finish == "length" and served.get("length", output.size) != output.size:
        return (
            Code.COUNT_MISMATCH,
            -1,
            f"the server cut at {served['length']} output ids, {output.size} came",
        )
    if first_foreign >= 0:
        got = int(output[first_foreign])
        return (
            Code.ID_OUT_OF_VOCABULARY,
            base + first_foreign,
            f"expected ids in [0, {grammar.size}), got {got}",
        )
    return _end_fault(grammar, base, output, completion)


def _end_fault(grammar: Grammar, base: int, output: Ids, completion: Completion) -> Fault | None:
    last, at = int(output[-1]), base + output.size - 1
    ends = last in grammar.end_ids
    if completion.finish_reason == "length":
        if ends:
            return Code.END_MISSING, at, f"finish length, but the last id {last} ends a turn"
        return None
    matched = completion.matched_stop
    if matched is not None and matched != last:
        return Code.END_MISSING, at, f"the server matched {matched}, the last id is {last}"
    if not ends:
        return (
            Code.END_MISSING,
            at,
            f"finish stop: expected one of {sorted(grammar.end_ids)} last, got {last}",
        )
    return None
