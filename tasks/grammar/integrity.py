"""Whether what came is what the model made: counts, range, the end. By ids and the server's own account."""

from collections.abc import Collection

from tasks.rows.records import Completion
from tasks.rows.verdicts import Code

Fault = tuple[Code, int, str]


def reply_fault(base: int, size: int, completion: Completion) -> Fault | None:
    """Return (code, offset into prompt + output, detail) of a reply's first fault, None when it is whole.

    Args:
        base: ids in the prompt.
        size: ids in the output.
        completion: the reply.
    """
    facts, finish = completion.facts, completion.finish_reason
    served = facts.get("finish_reason")
    served = served if isinstance(served, dict) else {}
    matched = served.get("matched")
    if finish == "nan" or (isinstance(matched, str) and "nan" in matched.lower()):
        detail = f"the server says {matched!r}: its sampler saw NaN and put an end id in its place"
        return Code.NAN, -1, detail
    if finish not in ("stop", "length"):
        return Code.ABORTED, -1, f"expected finish stop or length, got {finish!r}"
    if size == 0:
        return Code.NO_OUTPUT, base, "expected at least one output id, got none"
    counted = facts.get("completion_tokens")
    if counted is not None and counted != size:
        return Code.COUNT_MISMATCH, -1, f"the server counted {counted} output ids, {size} came"
    counted = facts.get("prompt_tokens")
    if counted is not None and counted != base:
        return Code.PROMPT_MISMATCH, -1, f"the server counted {counted} prompt ids, {base} were sent"
    if finish == "length" and served.get("length", size) != size:
        return Code.COUNT_MISMATCH, -1, f"the server cut at {served['length']} output ids, {size} came"
    return None


def end_fault(
    end_ids: Collection[int], at: int, last: int, completion: Completion, *, earlier: bool = False
) -> Fault | None:
    """Return the fault of a row whose end and finish reason disagree, None when they agree.

    An end id as the last allowed id is `length` for SGLang up to 0.5.16 and `stop` from 0.5.18 on: either way
    the row ended, and the ids that came are as many as were counted.

    Args:
        end_ids: ids that end a turn.
        at: offset of the output's last id in prompt + output.
        last: that id.
        completion: the reply.
        earlier: as in `check_rows`.
    """
    ends = last in end_ids
    if completion.finish_reason == "length":
        return (
            (Code.END_MISSING, at, f"finish length, but the last id {last} ends a turn")
            if ends and earlier
            else None
        )
    matched = completion.matched_stop
    if matched is not None and matched != last:
        return Code.END_MISSING, at, f"the server matched {matched}, the last id is {last}"
    if not ends:
        return Code.END_MISSING, at, f"finish stop: expected one of {sorted(end_ids)} last, got {last}"
    return None
