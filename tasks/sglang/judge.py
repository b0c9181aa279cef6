"""What a probe's replies prove about a server, as checks with evidence (pure).

Only the `/generate` ids decide. `logit_bias` forces an id in a one-token request, so what must come back does
not depend on what the model would say.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs
import numpy as np

from tasks.rows.records import Ids

QUESTION: Final = "What is 2+2?"
FORCE: Final = 1000.0
"""Bias that makes an id certain: logits of trained models stay far below it."""

FAITHFUL, UNFAITHFUL, UNKNOWN = "faithful", "unfaithful", "unknown"


def _plain_name(token: int) -> str:
    return str(token)


def _no_text(ids: Ids) -> str:
    return ""


@attrs.frozen(slots=True, eq=False)
class ProbePlan:
    """What to ask a server, in ids; everything that needs a tokenizer is handed in.

    Args:
        input_ids: int32[n]: the question as the template renders it, ending with the family's opener.
        closer_ids: ids that end the reasoning, in order; empty when the job does not think.
        end_ids: ids that may end an answer; the first is forced.
        vocab_size: ids valid in [0, vocab_size).
        sampling: the job's resolved `sampling_params`, used for the natural answer.
        max_new_tokens: cap of the natural answer.
        name_of: id to display name.
        decode: ids to display text.
        question: the question as plain text, for the chat channel.
        tokenizer: the job's tokenizer name or folder, to compare with the server's; "" to compare nothing.
        fingerprint_ids: int32[k]: what the model's fingerprint is asked with; none: it is not asked.
    """

    input_ids: Ids
    closer_ids: tuple[int, ...]
    end_ids: tuple[int, ...]
    vocab_size: int
    sampling: dict[str, Any] = attrs.field(factory=dict)
    max_new_tokens: int = 512
    name_of: Callable[[int], str] = _plain_name
    decode: Callable[[Ids], str] = _no_text
    question: str = QUESTION
    tokenizer: str = ""
    fingerprint_ids: Ids = attrs.field(factory=lambda: np.zeros(0, np.int32))


@attrs.frozen(slots=True)
class Check:
    """One thing that was checked.

    Args:
        name: what.
        channel: `generate` (decides), `text` or `chat` (evidence only).
        passed: whether expected and got agree.
        expected: for a person.
        got: for a person.
    """

    name: str
    channel: str
    passed: bool
    expected: str
    got: str


def verdict_of(checks: Sequence[Check], closed: bool) -> str:
    """Return the verdict: any `/generate` check that failed is proof; an unfinished answer proves nothing."""
    if any(c.channel == "generate" and not c.passed for c in checks):
        return UNFAITHFUL
    return FAITHFUL if closed else UNKNOWN


def has_closed(plan: ProbePlan, natural: Ids) -> bool:
    """Whether the natural answer closed its reasoning (if the job thinks) and ended by itself."""
    if natural.size == 0 or int(natural[-1]) not in plan.end_ids:
        return False
    width = len(plan.closer_ids)
    if width == 0:
        return True
    windows = (
        np.lib.stride_tricks.sliding_window_view(natural, width) if natural.size >= width else natural[:0]
    )
    return bool(windows.size and (windows == np.array(plan.closer_ids)).all(axis=1).any())


def judge_forced(
    plan: ProbePlan, name: str, token: int, reply: Mapping[str, Any], *, ends: bool
) -> list[Check]:
    """Judge the reply to a one-token request whose id was forced."""
    wanted = f"[{token}] {plan.name_of(token)}"
    got = reply.get("output_ids")
    finish = finish_of(reply)
    checks = [Check(f"{name}_forced", "generate", got == [token], wanted, shown(got))]
    if ends:
        matched = finish.get("type") == "stop" and finish.get("matched") == token
        checks.append(Check(f"{name}_matched", "generate", matched, f"stop at {token}", shown(finish)))
    return checks


def judge_natural(plan: ProbePlan, reply: Mapping[str, Any]) -> list[Check]:
    """Judge the natural answer: counts, ids in the vocabulary, end last, nothing of the prompt before it."""
    raw, finish = reply.get("output_ids"), finish_of(reply)
    meta = reply.get("meta_info")
    meta = meta if isinstance(meta, dict) else {}
    ids = read_ids(raw)
    sent, count = plan.input_ids.size, len(raw) if isinstance(raw, list) else 0
    checks = [
        _equal("prompt_count", sent, meta.get("prompt_tokens")),
        _equal("output_count", meta.get("completion_tokens"), count),
        Check(
            "in_vocabulary",
            "generate",
            ids.size == count > 0 and in_vocabulary(ids, plan.vocab_size),
            f"ids in [0, {plan.vocab_size})",
            shown(raw),
        ),
    ]
    if finish.get("type") == "stop":
        last = int(ids[-1]) if ids.size else None
        matched = finish.get("matched")
        ok = last is not None and last == matched and last in plan.end_ids
        checks.append(
            Check("end_last", "generate", ok, f"{matched} last, one of {list(plan.end_ids)}", f"{last}")
        )
    else:
        ok = finish.get("type") == "length"
        checks.append(Check("finish", "generate", ok, "stop or length", shown(finish)))
    return checks


def _equal(name: str, expected: Any, got: Any) -> Check:
    return Check(name, "generate", expected == got and got is not None, str(expected), str(got))


def finish_of(reply: Mapping[str, Any]) -> dict[str, Any]:
    """Return the finish reason of a reply, empty when it has none."""
    meta = reply.get("meta_info")
    finish = meta.get("finish_reason") if isinstance(meta, dict) else None
    return finish if isinstance(finish, dict) else {}


def read_ids(raw: Any) -> Ids:
    """Return int32[m] of a reply's ids, as far as they can be held; empty when they are none."""
    values = raw if isinstance(raw, list) else []
    if not all(isinstance(v, int) and not isinstance(v, bool) and -(2**31) <= v < 2**31 for v in values):
        return np.zeros(0, np.int32)
    return np.array(values, np.int32).reshape(-1)


def in_vocabulary(ids: Ids, vocab_size: int) -> bool:
    """Whether every id is within [0, vocab_size)."""
    return bool(ids.size == 0 or (int(ids.min()) >= 0 and int(ids.max()) < vocab_size))


def shown(value: Any) -> str:
    """Return a value as text, cut to what a line can hold."""
    text = str(value[:12]) + " …" if isinstance(value, list) and len(value) > 12 else str(value)
    return text if len(text) <= 200 else text[:200] + "…"


def shorten(text: str) -> str:
    """Return a text's repr, cut in its middle."""
    return repr(text if len(text) <= 160 else f"{text[:80]}…{text[-80:]}")
