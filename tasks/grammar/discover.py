"""Reading a chat format off its own rendered prompts: tails, family, meanings of ids."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.errors import TokenizerError
from tasks.grammar.families import FAMILIES, Family
from tasks.grammar.overrides import given_family
from tasks.grammar.states import Mode, Symbol
from tasks.rows.records import Ids, as_ids
from tasks.tokenizer.dialect import tool_probe
from tasks.tokenizer.messages import for_template, plain_message
from tasks.tokenizer.vocabulary import Vocabulary

PROBES: Sequence[Sequence[str]] = (("Say alpha",), ("Name 7", "Seven", "Count to 3"))
"""Two user turns with nothing in common at their ends."""


def prompt_tails(vocabulary: Vocabulary, args: Mapping[str, Any]) -> list[Ids]:
    """Return the generation prompts: of a user turn, and after a tool's result where there is one."""
    users = [[_turn(i, text) for i, text in enumerate(texts)] for texts in PROBES]
    form = {"x": 1} if vocabulary.dialect.arguments == "mapping" else '{"x": 1}'
    tools = [
        tool_probe(form),
        [*tool_probe(form, "find")[:2], {**tool_probe(form, "find")[2], "content": "7"}],
    ]
    try:
        first = _tail(vocabulary, users, args)
    except Exception as error:  # a template raises what it likes
        raise TokenizerError(
            f"the chat template refuses a plain question: {type(error).__name__}: {error}"
        ) from error
    try:
        second = _tail(vocabulary, tools, args)
    except Exception:  # noqa: BLE001 - a template without tools has no such tail
        return [first]
    return [first] if np.array_equal(first, second) else [first, second]


def _turn(index: int, text: str) -> dict[str, Any]:
    return {"role": "assistant" if index % 2 else "user", "content": text}


def _tail(
    vocabulary: Vocabulary, conversations: Sequence[Sequence[Mapping[str, Any]]], args: Mapping[str, Any]
) -> Ids:
    """Return what the generation prompt adds; where it adds nothing, what the prompts share at their end."""
    dialect = vocabulary.dialect
    prompts, added = [], []
    for messages in conversations:
        plain = [for_template(plain_message(m, i), dialect) for i, m in enumerate(messages)]
        full = dialect.encode(dialect.text(plain, None, args))
        bare = dialect.encode(dialect.text(plain, None, args, False))
        prompts.append(full)
        if len(full) > len(bare) and full[: len(bare)] == bare:
            added.append(full[len(bare) :])
    if len(added) == len(prompts) and all(ids == added[0] for ids in added):
        return as_ids(added[0])
    common = 0
    shortest = min(map(len, prompts))
    while common < shortest and len({prompt[-1 - common] for prompt in prompts}) == 1:
        common += 1
    return as_ids(prompts[0][len(prompts[0]) - common :])


def family_of(vocabulary: Vocabulary, tail: Ids) -> Family:
    """Return the job's own family, else the first in the table that fits vocabulary and tail.

    Raises:
        TokenizerError: when none is.
    """
    own = given_family(vocabulary.given)
    if own is not None:
        missing = [t for t in (own.opener, own.closer) if t and t not in vocabulary.control_ids]
        if missing and own.opens != "header" and not spells_thinking(vocabulary, own):
            raise TokenizerError(
                f"model.grammar: {missing[0]!r} is no control token of this vocabulary, "
                "and its chat template does not spell it"
            )
        return own
    present = set(tail.tolist())
    for family in FAMILIES:
        if all(text in vocabulary.control_ids for text in family.requires) and any(
            vocabulary.control_ids.get(header) in present for header in family.headers
        ):
            return family
    raise TokenizerError(
        "the chat format is of no known family: prompts end with "
        f"{[vocabulary.name_of(i) for i in tail.tolist()]}; describe it in model.grammar"
    )


def has_thinking(vocabulary: Vocabulary, family: Family) -> bool:
    """Return whether this vocabulary has the family's reasoning tokens (Kimi-K2-Instruct has not)."""
    if family.opens == "header":
        return True
    tagged = bool(family.opener) and {family.opener, family.closer} <= vocabulary.control_ids.keys()
    return tagged or spells_thinking(vocabulary, family)


def spells_thinking(vocabulary: Vocabulary, family: Family) -> bool:
    """Return whether opener and closer are ordinary text here, which the chat template knows."""
    tags = {family.opener, family.closer}
    if not family.opener or family.opens == "header" or tags & vocabulary.control_ids.keys():
        return False
    return family.closer in vocabulary.dialect.template


def spellings(vocabulary: Vocabulary, text: str) -> tuple[tuple[int, ...], ...]:
    """Return the ids of an ordinary text, and of it with the line breaks that may melt into its last id."""
    encoded = [tuple(vocabulary.dialect.encode(text + after)) for after in ("", "\n", "\n\n")]
    plain = encoded[0]
    return tuple(dict.fromkeys([plain, *(ids for ids in encoded[1:] if ids[: len(plain)] != plain)]))


def ids_of(vocabulary: Vocabulary, text: str) -> tuple[int, ...]:
    """Return the ids of a text of control tokens."""
    return tuple(vocabulary.dialect.encode(text))


def turn_ends(vocabulary: Vocabulary) -> frozenset[int]:
    """Return the ids that end a turn; where job and model name none, those that the family is known by.

    Raises:
        TokenizerError: the vocabulary is of no known family either.
    """
    if vocabulary.end_ids:
        return vocabulary.end_ids
    control = vocabulary.control_ids
    for family in FAMILIES:
        if all(text in control for text in family.requires) and any(h in control for h in family.headers):
            known = frozenset(control[text] for text in family.ends if text in control)
            if known:
                return known
    raise TokenizerError(
        "model.tokenizer: no eos_token_id in generation_config.json, and the vocabulary is of no known "
        "family: give model.grammar.end"
    )


def tool_ends(vocabulary: Vocabulary, family: Family) -> frozenset[int]:
    """Return the ids that end a turn after tool calls (gpt-oss's first generation_config lacks its own)."""
    ends = [text for text, symbol in family.symbols.items() if symbol is Symbol.TOOL_END]
    return frozenset(vocabulary.control_ids[text] for text in ends if text in vocabulary.control_ids)


def symbol_table(vocabulary: Vocabulary, family: Family) -> NDArray[np.uint8]:
    """uint8[size]: CONTROL for every control token, then what the family says, then the end ids."""
    table = np.zeros(vocabulary.size, np.uint8)
    named: dict[str, Symbol] = dict(family.symbols)
    for tag in (family.opener, family.closer) if spells_thinking(vocabulary, family) else ():
        table[[ids[0] for ids in spellings(vocabulary, tag)]] = Symbol.SPELLED
    if has_thinking(vocabulary, family) and family.opens != "header":
        named |= {family.opener: Symbol.OPEN, family.closer: Symbol.CLOSE}
    for text, id in vocabulary.control_ids.items():
        table[id] = Symbol.TEXT if text in family.plain else named.get(text, Symbol.CONTROL)
    for id in turn_ends(vocabulary):
        if id < table.size and table[id] != Symbol.TOOL_END:
            table[id] = Symbol.END
    return table


def longest_run(symbols: NDArray[np.uint8]) -> tuple[int, int]:
    """Return the longest [start, stop) of ids that are ordinary text: nearly all of any vocabulary."""
    meant = np.concatenate([[-1], np.flatnonzero(symbols), [symbols.size]])
    widest = int(np.diff(meant).argmax())
    return int(meant[widest]) + 1, int(meant[widest + 1])


def blank_table(vocabulary: Vocabulary) -> NDArray[np.bool_]:
    """bool[size]: ids whose text is only white space (at most some hundreds, all short)."""
    table = np.zeros(vocabulary.size, np.bool_)
    for text in _BLANKS:
        ids = vocabulary.dialect.encode(text)
        table[[id for id in ids if id not in vocabulary.control_ids.values()]] = True
    return table


_BLANKS = (
    *(mark * count for mark in (" ", "\n", "\t", "\r\n") for count in range(1, 9)),
    *(" \n", " \n\n", "\n ", "\n\n ", "\n    ", "\t\n", "  \n", "   \n\n"),
)


def mode_of(
    vocabulary: Vocabulary, family: Family, symbols: NDArray[np.uint8], blank: NDArray[np.bool_], tail: Ids
) -> Mode:
    """Read off the last id of the tail that is not white space who opens reasoning."""
    if family.opens in ("header", "open", "closed"):
        return family.opens
    last = _last_of(vocabulary, family, symbols, blank, tail)
    if last is Symbol.OPEN:
        return "open"
    if last is Symbol.CLOSE:
        return "closed"
    if not has_thinking(vocabulary, family):
        return "never"
    if family.opens == "template":
        template = vocabulary.dialect.template
        return "must" if not template or family.closer in template else "never"
    return family.opens


def _last_of(
    vocabulary: Vocabulary, family: Family, symbols: NDArray[np.uint8], blank: NDArray[np.bool_], tail: Ids
) -> Symbol:
    """Return what the last solid id of a tail means, or the tag that its text ends with."""
    if spells_thinking(vocabulary, family):
        text = vocabulary.decode(tail.tolist()).rstrip()
        for tag, symbol in ((family.closer, Symbol.CLOSE), (family.opener, Symbol.OPEN)):
            if text.endswith(tag):
                return symbol
    solid = [id for id in tail.tolist() if not blank[id]]
    return Symbol(int(symbols[solid[-1]])) if solid else Symbol.TEXT


def qualified_ids(vocabulary: Vocabulary, family: Family) -> tuple[tuple[int, tuple[int, ...], Symbol], ...]:
    """Return the ids whose meaning depends on what follows: (id, following ids, meaning), longest first."""
    found = [
        (vocabulary.control_ids[text], tuple(vocabulary.dialect.encode(following)), symbol)
        for text, meanings in family.qualified.items()
        if text in vocabulary.control_ids
        for following, symbol in meanings.items()
    ]
    if spells_thinking(vocabulary, family):
        tags = {family.opener: Symbol.OPEN, family.closer: Symbol.CLOSE}
        found += [
            (ids[0], ids[1:], symbol) for tag, symbol in tags.items() for ids in spellings(vocabulary, tag)
        ]
    return tuple(sorted(found, key=lambda entry: -len(entry[1])))
