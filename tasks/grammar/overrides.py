"""`model.grammar` of a job file: a chat format that nobody knows yet, or corrections to one that is known."""

from collections.abc import Mapping
from typing import Any, get_args

import attrs

from tasks.errors import JobError
from tasks.grammar.families import FAMILIES, Family
from tasks.grammar.rules import BARE_TOOLS, THINKING
from tasks.grammar.states import Mode, Symbol

TEXTS = ("opener", "closer", "tool_begin", "tool_end")
LISTS = ("end", "turn_starts", "plain")
FIELDS = ("family", *TEXTS, *LISTS, "thinking", "trim")


def given_family(given: Mapping[str, Any]) -> Family | None:
    """Return the family that a job describes; None when it describes none.

    Args:
        given: `family` names an entry of the table to start from (else an empty one); `opener`, `closer`,
            `tool_begin`, `tool_end` are control texts; `turn_starts` and `plain` lists of them; `thinking`
            says what every prompt's end means (open, closed, must, may, never) where the tail does not tell;
            `trim`: whether the template writes the line breaks around reasoning. `end` is the vocabulary's.

    Raises:
        JobError: naming the field, what was expected and what came.
    """
    check_given(given)
    if not set(given) - {"end"}:
        return None
    known = {family.name: family for family in FAMILIES}
    base = known[given["family"]] if "family" in given else Family(name="job", headers=())
    symbols = dict(base.symbols)
    symbols |= {text: Symbol.TURN for text in given.get("turn_starts", ())}
    rules, texts, before = base.rules, base.texts, base.before
    if "tool_begin" in given:
        symbols |= {given["tool_begin"]: Symbol.CALL_BEGIN, given["tool_end"]: Symbol.CALL_END}
        rules, texts, before = {**THINKING, **BARE_TOOLS}, {}, None
    return attrs.evolve(
        base,
        name=base.name if "family" in given else "job",
        opener=given.get("opener", base.opener),
        closer=given.get("closer", base.closer),
        symbols=symbols,
        rules=rules,
        texts=texts,
        before=before,
        plain=(*base.plain, *given.get("plain", ())),
        opens=given.get("thinking", base.opens),
        trim=given.get("trim", base.trim),
    )


def check_given(given: Mapping[str, Any]) -> None:
    """Check the fields of `model.grammar`.

    Raises:
        JobError: naming the first that is wrong.
    """
    for name, value in given.items():
        if name not in FIELDS:
            raise JobError(f"model.grammar.{name}: expected one of {', '.join(FIELDS)}")
        if name in TEXTS and not (isinstance(value, str) and value):
            raise JobError(f"model.grammar.{name}: expected the text of a control token, got {value!r}")
        if name in LISTS and not (isinstance(value, (list, tuple)) and value):
            raise JobError(f"model.grammar.{name}: expected a list of control tokens, got {value!r}")
    modes = tuple(mode for mode in get_args(Mode) if mode != "header")
    if given.get("thinking", "open") not in modes:
        raise JobError(f"model.grammar.thinking: expected {', '.join(modes)}, got {given['thinking']!r}")
    names = [family.name for family in FAMILIES]
    if given.get("family", names[0]) not in names:
        raise JobError(f"model.grammar.family: expected {', '.join(names)}, got {given['family']!r}")
    for left, right in (("opener", "closer"), ("tool_begin", "tool_end")):
        if (left in given) != (right in given):
            raise JobError(f"model.grammar: {left} and {right} come together")
