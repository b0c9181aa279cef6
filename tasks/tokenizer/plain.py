"""Text to ids with no control token known: what a spelling of `<|im_end|>` becomes when it is only text."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import orjson

from tasks.errors import RowError
from tasks.rows.verdicts import Code
from tasks.tokenizer.vocabulary import Vocabulary


def encode_plain(vocabulary: Vocabulary, text: str) -> list[int]:
    """Encode `text` so that no id in the result is a control token.

    Raises:
        RowError: `control_token_in_text` when this tokenizer has no way to do that.
    """
    encode = _encoder(vocabulary.tokenizer, vocabulary.dialect.has_switch)
    if encode is None:
        raise RowError(
            Code.CONTROL_TOKEN_IN_TEXT,
            f"{type(vocabulary.tokenizer).__name__} cannot encode a control token's text as plain text",
        )
    return encode(text)


@lru_cache(maxsize=2)  # whoever has more open at once is a test: each may be of 100 MB
def _encoder(tokenizer: Any, has_switch: bool) -> Callable[[str], list[int]] | None:
    if has_switch:
        return lambda text: list(tokenizer.encode(text, allow_special_tokens=False))
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return _without_added_tokens(backend) if backend is not None else None


def _without_added_tokens(backend: Any) -> Callable[[str], list[int]]:
    """Build the same tokenizer with no added tokens: `split_special_tokens` would leave half of them."""
    from tokenizers import Tokenizer

    content = orjson.loads(backend.to_str())
    content["added_tokens"] = []
    content["post_processor"] = None
    bare = Tokenizer.from_str(orjson.dumps(content).decode())
    return lambda text: list(bare.encode(text, add_special_tokens=False).ids)
