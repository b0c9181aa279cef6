"""Every chat format over a vocabulary of bytes: an id a byte, the control tokens of the genuine texts.

They load in milliseconds, so that grammars can be tried on very many rows.
"""

from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp

import attrs

from tasks.grammar.grammar import Grammar, discover_grammar
from tasks.job.spec import ModelSpec
from tasks.tokenizer.vocabulary import Vocabulary, load_vocabulary
from tests.support.sketches import OWN_TEMPLATES, SKETCHES, Sketch, lay_out

_KNOWN = "('<think></think>' if m.role == 'assistant' else '')"
_MINIMAX = Sketch(
    controls=("]~b]", "]~!b[", "[e~[", "<think>", "</think>", "<minimax:tool_call>", "</minimax:tool_call>"),
    ends=("[e~[",),
    start="]~b]",
    middle="\n",
    stop="[e~[\n",
    tail="{{- '<think>\\n' -}}",
)
_KIMI, _CHATML, _DEEPSEEK = (
    SKETCHES[name] for name in ("kimi-k2-thinking", "qwen3-thinking-2507", "deepseek-r1-0528")
)


def _tail(sketch: Sketch, text: str, reason: str = _KNOWN) -> Sketch:
    return attrs.evolve(sketch, tail=f"{{{{- {text!r} -}}}}", reason=reason)


BYTE_FAMILIES = {
    "kimi must": _KIMI,
    "kimi open": _tail(_KIMI, "<think>"),
    "kimi closed": _tail(_KIMI, "<think></think>"),
    "kimi never": SKETCHES["kimi-k2-instruct"],
    "chatml must": _tail(_CHATML, ""),
    "chatml open": _tail(_CHATML, "<think>\n"),
    "chatml closed": _tail(_CHATML, "<think>\n\n</think>\n\n"),
    "deepseek must": _DEEPSEEK,
    "deepseek open": _tail(_DEEPSEEK, "<think>"),
    "dsml open": attrs.evolve(_tail(_DEEPSEEK, "<think>"), controls=(*_DEEPSEEK.controls, "｜DSML｜")),
    "glm must": attrs.evolve(SKETCHES["glm-4.5"], switch=None),
    "minimax-m2 open": _MINIMAX,
    "minimax-m3 may": attrs.evolve(
        _MINIMAX,
        controls=(
            *("]~b]", "]~!b[", "[e~[", "<mm:think>", "</mm:think>", "]<]minimax[>["),
            *("<tool_call>", "</tool_call>"),
        ),
        tail="",
    ),
    "gpt-oss header": SKETCHES["gpt-oss"],
    "llama-3 never": SKETCHES["llama-3.1"],
    "mistral may": attrs.evolve(
        SKETCHES["magistral"], controls=(*SKETCHES["magistral"].controls, "[CALL_ID]")
    ),
}
"""Family and mode of the tail to its sketch."""

_OWN = {"gpt-oss header": OWN_TEMPLATES["gpt-oss"], "mistral may": OWN_TEMPLATES["magistral"]}


@lru_cache
def byte_family(name: str) -> tuple[Vocabulary, Grammar]:
    """Return the vocabulary and grammar of `BYTE_FAMILIES[name]`."""
    folder = Path(mkdtemp())
    lay_out(BYTE_FAMILIES[name], _OWN.get(name), folder)
    vocabulary = load_vocabulary(ModelSpec(tokenizer=str(folder)))
    return vocabulary, discover_grammar(vocabulary)
