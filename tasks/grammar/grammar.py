"""The token grammar of one job, discovered from its own rendered prompts; never from a model's name."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from tasks.grammar.discover import (
    blank_table,
    family_of,
    has_thinking,
    ids_of,
    longest_run,
    mode_of,
    prompt_tails,
    qualified_ids,
    symbol_table,
    tool_ends,
    turn_ends,
)
from tasks.grammar.rules import Transitions
from tasks.grammar.states import Mode, Symbol
from tasks.grammar.texts import Texts
from tasks.rows.records import Ids
from tasks.tokenizer.vocabulary import Vocabulary

SHORT = 32
"""Ids: a text between control ids that is no longer is read once."""


@attrs.frozen(slots=True, eq=False)
class Tail:
    """How prompts of this job end: the ids of the generation prompt, and what they say of reasoning."""

    ids: Ids
    mode: Mode


@attrs.frozen(slots=True, eq=False)
class Grammar:
    """What an output must look like, by ids alone.

    Args:
        family: name of the chat format.
        size: ids are valid in [0, size).
        tails: how prompts end, the longest first; the first entry of `default` is the job's usual one.
        default: the tail of an ordinary user turn.
        opener_ids: ids that open reasoning, () for none.
        closer_ids: ids that close it.
        end_ids: ids that end a turn.
        symbols: uint8[size]: meaning of each id.
        blank: bool[size]: ids that are only white space.
        plain_run: the longest run [start, stop) of ids that are all ordinary text.
        qualified: ids whose meaning depends on the ids that follow, longest first: (id, following, symbol).
        rules: (state, symbol) to state.
        texts: what must stand as text in front of a control id.
        before: the rules of earlier versions.
        read: ids to text.
        trim: whether history is handed to the template without line breaks around reasoning.
    """

    family: str
    size: int
    tails: tuple[Tail, ...]
    default: Tail
    opener_ids: tuple[int, ...]
    closer_ids: tuple[int, ...]
    end_ids: frozenset[int]
    symbols: NDArray[np.uint8]
    blank: NDArray[np.bool_]
    plain_run: tuple[int, int]
    qualified: tuple[tuple[int, tuple[int, ...], Symbol], ...]
    rules: Transitions
    texts: Texts
    before: Transitions
    read: Callable[[Ids], str]
    trim: bool

    @property
    def thinking(self) -> bool:
        """Whether an ordinary turn of this job may hold reasoning."""
        return self.default.mode in ("open", "must", "may", "header") and bool(self.closer_ids)

    @property
    def earlier(self) -> "Grammar":
        """The grammar by which earlier versions judged, for the audit of what they stored."""
        return attrs.evolve(self, rules=self.before, texts={})

    def describe(self) -> dict[str, Any]:
        """Return a JSON-able account for `job.json`."""
        return {
            "family": self.family,
            "tails": [{"ids": tail.ids.tolist(), "mode": tail.mode} for tail in self.tails],
            "opener_ids": list(self.opener_ids),
            "closer_ids": list(self.closer_ids),
            "end_ids": sorted(self.end_ids),
        }

    def tail_of(self, prompt: Ids) -> Tail | None:
        """Return the tail that `prompt` ends with, None when it ends with none of this job's."""
        for tail in self.tails:
            if prompt.size > tail.ids.size and np.array_equal(
                prompt[prompt.size - tail.ids.size :], tail.ids
            ):
                return tail
        return None


def discover_grammar(vocabulary: Vocabulary, variants: Sequence[Mapping[str, Any]] = ()) -> Grammar:
    """Render probes with the job's exact template arguments and read the grammar off their tails.

    Args:
        vocabulary: the job's.
        variants: further template arguments under which rows are rendered (`sampling.mix`), each laid over
            the job's own: their tails belong to the grammar too.

    Raises:
        TokenizerError: when the probes do not render, or their tail is of no known family.
    """
    groups = [
        prompt_tails(vocabulary, {**vocabulary.template_args, **variant}) for variant in ({}, *variants)
    ]
    family = family_of(vocabulary, groups[0][0])
    symbols = symbol_table(vocabulary, family)
    blank = blank_table(vocabulary)
    known = _known_tails(groups, partial(mode_of, vocabulary, family, symbols, blank))
    return Grammar(
        family=family.name,
        size=vocabulary.size,
        tails=tuple(sorted(known, key=lambda tail: -tail.ids.size)),
        default=known[0],
        opener_ids=ids_of(vocabulary, family.opener) if has_thinking(vocabulary, family) else (),
        closer_ids=ids_of(vocabulary, family.closer) if has_thinking(vocabulary, family) else (),
        end_ids=turn_ends(vocabulary) | tool_ends(vocabulary, family),
        symbols=symbols,
        blank=blank,
        plain_run=longest_run(symbols),
        qualified=qualified_ids(vocabulary, family),
        rules=family.rules,
        texts=family.texts,
        before=family.before or family.rules,
        read=_reader(vocabulary),
        trim=family.trim,
    )


def _known_tails(groups: Sequence[Sequence[Ids]], mode: Callable[[Ids], Mode]) -> list[Tail]:
    """Return every tail once, with what it says of reasoning; one group per set of template arguments."""
    known: list[Tail] = []
    for group in groups:
        modes = [mode(ids) for ids in group]
        if modes[0] in ("open", "closed"):  # a template that opens or closes reasoning asks no model to do it
            modes = ["may" if mode == "must" else mode for mode in modes]
        new = [Tail(ids, mode) for ids, mode in zip(group, modes, strict=True)]
        known += [tail for tail in new if not any(np.array_equal(tail.ids, old.ids) for old in known)]
    return known


def _reader(vocabulary: Vocabulary) -> Callable[[Ids], str]:
    """Return what reads ids as text and keeps the short ones: headers are nearly always the same few."""
    kept = lru_cache(256)(vocabulary.decode)

    def read(ids: Ids) -> str:
        return kept(tuple(ids.tolist())) if ids.size <= SHORT else vocabulary.decode(ids.tolist())

    return read
