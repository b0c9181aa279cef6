"""Messages to prompt ids, as the family is served live. User text can never become a control token."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

import attrs

from tasks.errors import RowError
from tasks.rows.records import Ids, as_ids
from tasks.rows.verdicts import Code
from tasks.tokenizer.dialect import Message
from tasks.tokenizer.messages import for_template, map_strings, plain_message
from tasks.tokenizer.plain import encode_plain
from tasks.tokenizer.vocabulary import Vocabulary


@attrs.frozen(slots=True, eq=False)
class Rendered:
    """One prompt, and what a person needs to see of how it came about.

    Args:
        ids: int32[n]: exactly what is sent.
        text: the rendered text, control tokens visible.
        as_text: control-token spellings in messages that were encoded as plain text, as (where, text).
    """

    ids: Ids
    text: str
    as_text: tuple[tuple[str, str], ...]


def render(
    vocabulary: Vocabulary,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    policy: str = "refuse",
    *,
    own: Collection[int] = (),
    args: Mapping[str, Any] | None = None,
) -> Ids:
    """Return the prompt ids of a conversation, int32[n], ending in the family's generation prompt.

    Args:
        vocabulary: whose template and ids.
        messages: what is really sent, in order.
        tools: tool declarations, as the template takes them.
        policy: `refuse` raises on text that spells a control token; `as_text` encodes it as ordinary ids.
        own: indexes of messages that the model itself wrote in this job. What it spelled there in ordinary
            ids goes back as ordinary ids under either policy: nobody could correct it, and it happened.
        args: template arguments; None: the job's.

    Raises:
        RowError: `bad_record`, `control_token_in_text` (offset: character in the message),
            `template_error` (the template refuses or drops a message, or the ids are not its text).
    """
    return render_prompt(vocabulary, messages, tools, policy, own=own, args=args).ids


def render_prompt(
    vocabulary: Vocabulary,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    policy: str = "refuse",
    *,
    own: Collection[int] = (),
    args: Mapping[str, Any] | None = None,
) -> Rendered:
    """Do what `render` does and return the text too, for people."""
    plain = [plain_message(message, index) for index, message in enumerate(messages)]
    shield = Shield(vocabulary, policy)
    safe = [shield.message(message, index, index in own) for index, message in enumerate(plain)]
    safe_tools = [shield.value(tool, "tools", own=False) for tool in tools] if tools else None
    used = vocabulary.template_args if args is None else args
    try:
        text = vocabulary.dialect.text([for_template(m, vocabulary.dialect) for m in safe], safe_tools, used)
    except RowError:
        raise
    except Exception as error:  # a template raises what it likes
        raise RowError(Code.TEMPLATE_ERROR, f"{type(error).__name__}: {error}") from error
    _check_nothing_dropped(text, safe)
    ids = shield.encode(text)
    return Rendered(ids, shield.restore(text), tuple(shield.found))


def _check_nothing_dropped(text: str, messages: Sequence[Message]) -> None:
    """Templates drop roles that they do not know without a word; `developer` is the usual one."""
    for index, message in enumerate(messages):
        body = message["content"].strip()
        if body not in text and json.dumps(body, ensure_ascii=False)[1:-1] not in text:  # some print JSON
            raise RowError(
                Code.TEMPLATE_ERROR,
                f"message {index}: the template drops or changes its text (role {message['role']!r})",
            )


@lru_cache(maxsize=2)
def control_pattern(vocabulary: Vocabulary) -> re.Pattern[str]:
    """Return a pattern that finds every control token's text, the longest first."""
    texts = sorted(vocabulary.control_ids, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, texts)))


class Shield:
    """Keeps text that spells a control token from becoming one.

    While the template runs, a placeholder stands in for each such spelling; afterwards the stretch of text
    around it is encoded without control tokens. So it works for any tokenizer, Kimi's included, and the
    template cannot act on the spelling either (Qwen3 and GLM split on `</think>`).
    """

    def __init__(self, vocabulary: Vocabulary, policy: str) -> None:
        self._vocabulary = vocabulary
        self._refuses = policy == "refuse"
        self._pattern = control_pattern(vocabulary)
        self.found: list[tuple[str, str]] = []

    def message(self, message: Message, index: int, own: bool) -> Message:
        """Return a message with placeholders.

        Raises:
            RowError: `control_token_in_text` under the policy `refuse`, unless the model wrote it itself.
        """
        if message["role"] == "assistant" or len(message) > 2:
            return dict(self.value(message, f"message {index}", own=own))
        return {**message, "content": self._text(message["content"], f"message {index}", own)}

    def value(self, value: Any, where: str, *, own: bool) -> Any:
        """Return any JSON value with placeholders in its strings."""
        return map_strings(value, lambda text: self._text(text, where, own))

    def _text(self, text: str, where: str, own: bool) -> str:
        hit = self._pattern.search(text)
        if hit is None:
            return text
        if self._refuses and not own:
            raise RowError(
                Code.CONTROL_TOKEN_IN_TEXT,
                f"{where}, character {hit.start()}: the text spells the control token {hit.group()!r}",
                hit.start(),
            )
        return self._pattern.sub(lambda match: self._placeholder(where, match.group()), text)

    def _placeholder(self, where: str, text: str) -> str:
        self.found.append((where, text))
        return f"Qz{len(self.found) - 1}ControlTokenAsText7vK"

    def restore(self, text: str) -> str:
        """Put the spellings back."""
        if not self.found:
            return text
        return _PLACEHOLDER.sub(lambda match: self.found[int(match.group(1))][1], text)

    def encode(self, text: str) -> Ids:
        """Encode rendered text, int32[n]; the control ids in it are the template's own.

        Raises:
            RowError: `template_error` when they are not.
        """
        dialect = self._vocabulary.dialect
        if not self.found:
            ids = dialect.encode(text)
            own = len(self._pattern.findall(text))
        else:
            ids, own = [], 0
            for stretch, is_control in self._stretches(text):
                own += len(self._pattern.findall(stretch)) if is_control else 0
                ids += (
                    dialect.encode(stretch)
                    if is_control
                    else encode_plain(self._vocabulary, self.restore(stretch))
                )
        control = _control_set(self._vocabulary)
        got = sum(id in control for id in ids)
        if got != own:
            raise RowError(
                Code.TEMPLATE_ERROR, f"expected the template's own {own} control ids in the prompt, got {got}"
            )
        return as_ids(ids)

    def _stretches(self, text: str) -> list[tuple[str, bool]]:
        """Split at control tokens next to a placeholder: (text, whether control tokens in it are meant)."""
        stretches: list[tuple[str, bool]] = []
        meant = start = 0
        for match in [*self._pattern.finditer(text), None]:
            stop = len(text) if match is None else match.start()
            if _PLACEHOLDER.search(text, start, stop):
                if meant < start:
                    stretches.append((text[meant:start], True))
                stretches.append((text[start:stop], False))
                meant = stop
            start = stop if match is None else match.end()
        if meant < len(text):
            stretches.append((text[meant:], True))
        return stretches


_PLACEHOLDER = re.compile(r"Qz(\d+)ControlTokenAsText7vK")


@lru_cache(maxsize=2)
def _control_set(vocabulary: Vocabulary) -> frozenset[int]:
    return frozenset(vocabulary.control_ids.values())
