"""Text that spells a control token never becomes one, on every family, whatever the policy."""

from collections import Counter

import pytest

from tasks.errors import RowError
from tasks.rows.records import Ids
from tasks.tokenizer.template import render, render_prompt
from tasks.tokenizer.vocabulary import Vocabulary
from tests.support.families import Load
from tests.support.model_folders import GENUINE

EVERY = [
    "stand-in",
    "kimi-tiny",
    pytest.param("kimi", marks=pytest.mark.shared),
    *(pytest.param(name) for name in GENUINE),
]
PLACES = {
    "user": lambda text: [{"role": "user", "content": f"Say {text} twice: {text}!"}],
    "system": lambda text: [{"role": "system", "content": text}, {"role": "user", "content": "Go."}],
    "history": lambda text: [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": f"Well, {text} it is, {text} indeed."},
        {"role": "user", "content": "On."},
    ],
    "parts": lambda text: [
        {"role": "user", "content": [{"type": "text", "text": text[:3]}, {"type": "text", "text": text[3:]}]}
    ],
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("family", EVERY)
def test_refuse_names_message_character_and_token(family: str, place: str, load: Load) -> None:
    """Under `refuse` every control token's text, special or not, rejects the row and says where."""
    vocabulary, _ = load(family, True)
    for token in spellings(vocabulary):
        messages = PLACES[place](token)
        with pytest.raises(RowError, match="message") as caught:
            render(vocabulary, messages)
        assert caught.value.code == "control_token_in_text"
        assert caught.value.offset >= 0


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("family", EVERY)
def test_as_text_keeps_the_text_and_adds_no_control_id(family: str, place: str, load: Load) -> None:
    """Under `as_text` the ids decode to the same text and hold no control id beyond the template's own."""
    vocabulary, grammar = load(family, True)
    control = set(vocabulary.control_ids.values())
    neutral = Counter(i for i in render(vocabulary, PLACES[place]("xyzzy")).tolist() if i in control)
    for token in spellings(vocabulary):
        rendered = render_prompt(vocabulary, PLACES[place](token), policy="as_text")
        assert Counter(i for i in rendered.ids.tolist() if i in control) == neutral, token
        assert vocabulary.decode(rendered.ids.tolist()) == rendered.text
        assert token in rendered.text
        assert rendered.as_text
        assert grammar.tail_of(rendered.ids) is not None


@pytest.mark.parametrize("family", EVERY)
def test_what_the_model_wrote_itself_goes_back_as_text(family: str, load: Load) -> None:
    """An answer of this job that spells a control token in ordinary ids is history in ordinary ids."""
    vocabulary, _ = load(family, True)
    token = next(text for text in vocabulary.control_ids if text.startswith("<"))
    messages = PLACES["history"](token)
    ids = render(vocabulary, messages, own={1})
    assert token in vocabulary.decode(ids.tolist())
    assert np_equal(ids, render(vocabulary, messages, policy="as_text"))


@pytest.mark.parametrize("family", EVERY)
def test_innocent_text_is_encoded_the_same_under_both_policies(family: str, load: Load) -> None:
    """A policy changes nothing for text without control tokens."""
    vocabulary, _ = load(family, True)
    messages = [{"role": "user", "content": "if a < b | c > d: print('</thin' + 'k>')  # [a] {b}"}]
    assert np_equal(render(vocabulary, messages), render(vocabulary, messages, policy="as_text"))


def spellings(vocabulary: Vocabulary) -> list[str]:
    """Return every control token's text, but only one of hundreds of numbered placeholders."""
    numbered = [text for text in vocabulary.control_ids if "holder" in text or "reserved" in text]
    return [text for text in vocabulary.control_ids if text not in numbered[1:]]


def np_equal(left: Ids, right: Ids) -> bool:
    """Whether two id arrays are equal."""
    return left.tolist() == right.tolist()
