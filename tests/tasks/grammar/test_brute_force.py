"""The checker against the published formats (`tests/support/formats.py`), on random and mutated rows.

`RAWSEQ_GRAMMAR_ROWS` sets how many a family (default 5,000; `make soak` takes 100,000), and
`RAWSEQ_GRAMMAR_SEED` makes others. What both accept has the same segments, what both refuse the same place;
any difference is in a table here, with its reason.
"""

import os
import random
import re
from collections.abc import Callable, Iterator

import attrs
import pytest

from tasks.grammar.check import check_rows
from tasks.rows.records import Completion, Ids, Ragged, Verdict, as_ids
from tasks.rows.verdicts import CANONICAL, CUT, Code
from tasks.tokenizer.template import render
from tasks.tokenizer.vocabulary import Vocabulary
from tests.support.byte_families import BYTE_FAMILIES, byte_family
from tests.support.formats import FORMATS, Format, Spans

ROWS = int(os.environ.get("RAWSEQ_GRAMMAR_ROWS", "5000"))
SEED = int(os.environ.get("RAWSEQ_GRAMMAR_SEED", "0"))
PLACES = 10
"""Of one refused row in so many the place is compared: the formats find it by halving."""

D = "｜DSML｜"
_KIMI = "<|tool_call_begin|>f:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
_DEEPSEEK = "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
_GLM = "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"
_TAG = f'<{D}parameter name="x" string="true">1</{D}parameter>\n'
_MARKED = f'<{D}invoke name="f">\n{_TAG}</{D}invoke>\n'
_START, _SAYS = "<|end|><|start|>assistant", "<|channel|>final<|message|>b<|return|>"
_HM = f"<|channel|>analysis<|message|>a{_START}"
_CALL = "<|message|>{}<|call|>"
BODIES = {
    "kimi": ["b", f"<|tool_calls_section_begin|>{_KIMI}\n{_KIMI}<|tool_calls_section_end|>"],
    "chatml": [
        "b",
        "<tool_call>\n{}\n</tool_call>\n<tool_call>{}</tool_call>",
        "b<tool_call>{}</tool_call>\n",
    ],
    "deepseek": ["b", f"b<｜tool▁calls▁begin｜>{_DEEPSEEK}\n{_DEEPSEEK}<｜tool▁calls▁end｜>"],
    "dsml": [
        "b",
        f"\n<{D}tool_calls>\n{_MARKED}{_MARKED}</{D}tool_calls>",
        f"<{D}tool_calls>{_MARKED}</{D}tool_calls>",
    ],
    "glm": ["\nb", f"{_GLM}\n{_GLM}", "<tool_call>f</tool_call>"],
    "minimax-m2": ["b", '<minimax:tool_call>\n<invoke name="f">\n</invoke>\n</minimax:tool_call>'],
    "minimax-m3": ["b", ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="f">]<]minimax[>[</tool_call>'],
    "llama-3": ["b", "<|python_tag|>f()", "b<|python_tag|>f()<|python_tag|>g()"],
    "mistral": [
        "b",
        "[TOOL_CALLS]f[ARGS]{}",
        "[TOOL_CALLS]f[CALL_ID]1[ARGS]{}[TOOL_CALLS]g[ARGS]{}",
        "[TOOL_CALLS] [{}]",
    ],
    "gpt-oss": [
        _SAYS,
        _HM + _SAYS,
        _HM + _HM + "<|channel|>final <|constrain|>json<|message|>{}<|return|>",
        f"{_HM}<|channel|>commentary to=f.x <|constrain|>json{_CALL}",
        f"{_HM}<|channel|>commentary to=f<|constrain|>json{_CALL}",
        f"{_HM}<|channel|>commentary<|message|>b{_START} to=f.x<|channel|>commentary json{_CALL}",
        f" to=py<|channel|>analysis code{_CALL}",
        f"<|channel|>analysis to=py{_CALL}",
    ],
}
"""What a turn of the family may be behind its reasoning, without the end."""

WORDS = ["a", "b", " ", "\n", "<", "</", ">", "{}", "[", " x"]
OWN_WORDS = {
    "gpt-oss": [*["assistant", "user", "final", "analysis", "commentary", "json"], " to=f", " json", "to"],
    "dsml": ["invoke", "parameter", "tool_calls", ' name="x"'],
    "minimax-m2": ['<invoke name="x">'],
    "minimax-m3": ['<invoke name="x">'],
}


@attrs.frozen
class Tried:
    """One family in one mode: its vocabulary, its prompt, and the format to hold it against."""

    family: str
    mode: str
    vocabulary: Vocabulary
    prompt: Ids
    format: Format
    ids: dict[str, int]

    @classmethod
    def of(cls, name: str) -> "Tried":
        """Return one of `BYTE_FAMILIES`."""
        family, mode = name.split()
        vocabulary, _ = byte_family(name)
        controls = vocabulary.control_ids
        ascii_ids = {char: vocabulary.dialect.encode(char) for char in map(chr, (10, *range(32, 127)))}
        ids = {char: one for char, (one,) in ascii_ids.items()}
        prompt = render(vocabulary, [{"role": "user", "content": "Well?"}])
        known = Format(FORMATS[family], mode, controls, {one: char for char, one in ids.items()})
        return cls(family, mode, vocabulary, prompt, known, ids | controls)

    def rows(self, count: int, dice: random.Random) -> Iterator[list[int]]:
        """Yield outputs: most are proper ones with up to three changes, some cut, some anything at all."""
        controls = sorted(self.vocabulary.control_ids, key=len, reverse=True)
        split = re.compile("|".join([*map(re.escape, controls), r"\w+", r"\W"]))
        proper = [split.findall(text) for text in self._proper()]
        words = [*WORDS, *OWN_WORDS.get(self.family, ()), *controls]
        for _ in range(count):
            pieces = list(dice.choice(proper))
            if dice.random() < 0.1:
                pieces = dice.choices(words, k=dice.randrange(1, 12))
            for _ in range(dice.choice((0, 1, 1, 2, 3))):
                _change(pieces, words, dice)
            if row := [id for piece in pieces for id in self._spelled(piece)]:
                yield row if dice.random() < 0.8 else row[: dice.randrange(1, len(row) + 1)]

    def _spelled(self, piece: str) -> list[int]:
        return [self.ids[piece]] if piece in self.ids else [self.ids[char] for char in piece]

    def _proper(self) -> Iterator[str]:
        published = FORMATS[self.family]
        named, ends = published.controls, [*published.ends, *published.call_ends]
        thought = f"hm{named.get('CLOSE')}"
        heads = {"open": [thought], "must": [f"\n{named.get('OPEN')}{thought}"]}.get(self.mode, [""])
        if self.mode == "may":
            heads = ["", f"{named['OPEN']}{thought}"]
        for head in heads:
            for body in BODIES[self.family]:
                yield from [head + body] if self.mode == "header" else [head + body + end for end in ends]


def _change(pieces: list[str], words: list[str], dice: random.Random) -> None:
    at, kind = dice.randrange(len(pieces) + 1), dice.randrange(5)
    if kind == 0 or not pieces:
        pieces.insert(at, dice.choice(words))
        return
    at = min(at, len(pieces) - 1)
    if kind == 1:
        del pieces[at]
    elif kind == 2:
        pieces.insert(at, pieces[at])
    elif kind == 3:
        pieces[at] = dice.choice(words)
    else:
        other = dice.randrange(len(pieces))
        pieces[at], pieces[other] = pieces[other], pieces[at]


Explanation = Callable[[Tried, str, Verdict], bool]


def _echoes(tried: Tried, text: str, verdict: Verdict) -> bool:
    tail = tried.format.text(tried.prompt[-5:].tolist())
    return any(text.startswith(tail[start:]) for start in range(len(tail)))


def _repeats(tried: Tried, text: str, verdict: Verdict) -> bool:
    return re.search(r"(.{1,4})\1{7}.?$", text, re.DOTALL) is not None


EXPLAINED: dict[Code, tuple[str, Explanation]] = {
    Code.TAIL_ECHO: ("a server once put the prompt's end in front: no matter of the format", _echoes),
    Code.REPETITION: ("a loop is well-formed", _repeats),
}
"""Codes of rows that are of the format and refused all the same: why, and how that is seen."""


def _headers(spans: Spans) -> Spans:
    """Return spans with the two kinds of gpt-oss headers as one, and neighbours of one kind as one."""
    joined: Spans = []
    for kind, start, stop in spans:
        kind = "header" if kind in ("opener", "closer") else kind
        if joined and joined[-1][0] == kind:
            start = joined.pop()[1]
        joined.append((kind, start, stop))
    return joined


def difference(tried: Tried, text: str, verdict: Verdict, place: bool) -> str:
    """Return how checker and format disagree about one output, "" where they agree or it is explained."""
    base, told = tried.prompt.size, f"{verdict.code} at {verdict.offset - tried.prompt.size}"
    spans = tried.format.ended(text) if text[-1] in tried.format.end_chars else None
    begun = text[-1] not in tried.format.end_chars and tried.format.begins(text)
    if verdict.code not in CANONICAL | CUT:
        if spans is None and not begun:
            return _place(tried, text, verdict) if place else ""
        why = EXPLAINED.get(Code(verdict.code))
        return "" if why is not None and why[1](tried, text, verdict) else f"refused as {told}"
    if spans is None:
        agreed = begun and verdict.code in CUT and verdict.offset == base + len(text)
        return "" if agreed else f"taken as {told}"
    calls = any(kind == "tool_calls" for kind, _, _ in spans)
    if verdict.code != (Code.COMPLETE_TOOLS if calls else Code.COMPLETE):
        return f"{told}, with calls: {calls}"
    ours = [(part.kind, part.start - base, part.stop - base) for part in verdict.segments[1:]]
    if tried.mode == "header":
        ours, spans = _headers(ours), _headers(spans)
    return "" if ours == spans else f"segments {ours}, by the format {spans}"


def _place(tried: Tried, text: str, verdict: Verdict) -> str:
    """Return what is wrong with a fault's place: it is the first id after which no such output can be.

    Text that may not stand where it does is told at its beginning, of which a part may still have been right.
    """
    low, high = 0, len(text) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if tried.format.begins(text[:middle]) else (low, middle)
    at = verdict.offset - tried.prompt.size
    if (
        verdict.code in EXPLAINED
        or at == low
        or (at < low and not set(text[at + 1 : low]) & tried.format.controls)
    ):
        return ""
    return f"{verdict.code} at {at}, by the format at {low}"


@pytest.mark.parametrize("name", BYTE_FAMILIES)
def test_the_checker_is_the_format(name: str) -> None:
    """Accepted is accepted, refused is refused, and everything has its place."""
    tried = Tried.of(name)
    _, grammar = byte_family(name)
    shares = sum(other.startswith(f"{tried.family} ") for other in BYTE_FAMILIES)
    outputs = list(tried.rows(ROWS // shares, random.Random(f"{name}{SEED}")))
    rows = [
        Completion("r", tried.prompt, as_ids(ids), "stop" if ids[-1] in grammar.end_ids else "length")
        for ids in outputs
    ]
    columns = Ragged.from_rows([tried.prompt] * len(rows)), Ragged.from_rows([row.output_ids for row in rows])
    accepted, wrong = 0, []
    for number, (ids, verdict) in enumerate(zip(outputs, check_rows(grammar, *columns, rows), strict=True)):
        accepted += verdict.code in CANONICAL
        if found := difference(tried, tried.format.text(ids), verdict, number % PLACES == 0):
            wrong.append(f"{tried.vocabulary.decode(ids)!r}: {found}; {verdict.detail}")
    assert not wrong, f"{len(wrong)} of {len(rows)}:\n" + "\n".join(sorted(wrong, key=len)[:20])
    assert accepted > len(rows) / 8
