"""When two records are the same prompt, and when one is an evaluation set's (pure)."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from tasks.prompts.record import Record

KEY_BYTES: Final = 16
"""Of blake2b: among 2⁴⁰ prompts a chance meeting has odds of 1 in 2⁴⁹, so keys stand for prompts."""


def prompt_key(record: Record) -> bytes:
    """Return the key of a record's messages and tools, whatever shape and source they came in.

    The order of fields, null fields of messages, ids and other fields do not count; nor does a recorded
    answer at the very end, which is never sent. Text counts as it is: another blank is another prompt.
    """
    messages = record.messages
    if messages and messages[-1].get("role") == "assistant":
        messages = messages[:-1]
    text = orjson.dumps(
        [messages, record.tools], option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS, default=str
    )
    return hashlib.blake2b(text, digest_size=KEY_BYTES).digest()


def opening_keys(record: Record) -> Iterator[bytes]:
    """Yield the keys of the record's first user message, of its first two, and so on to all of them.

    Case, white space and everything but the text of user messages do not count.
    """
    digest = hashlib.blake2b(digest_size=KEY_BYTES)
    for message in record.messages:
        if message.get("role") == "user":
            digest.update(" ".join(_text(message).casefold().split()).encode("utf-8", "surrogatepass"))
            digest.update(b"\0")
            yield digest.digest()


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content", "")
    if isinstance(content, str):
        return content
    return " ".join(str(part.get("text", "")) if isinstance(part, dict) else str(part) for part in content)
