"""Text to ids with no control token known: what a spelling of `<|im_end|>` becomes when it is only text."""

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from tasks.errors import RowError
from tasks.rows.verdicts import Code
from tasks.tokenizer.vocabulary import Vocabulary


def encode_plain(vocabulary: Vocabulary, text: str) -> list[int]:
    """Encode `text` so that no id in the result is a control token.

    Raises:
        RowError: `control_token_in_text` when this tokenizer has no way to do that.
    """
    encode = _encoder(vocabulary)
    if encode is None:
        raise RowError(
            Code.CONTROL_TOKEN_IN_TEXT,
            f"{type(vocabulary.tokenizer).__name__} cannot encode a control token's text as plain text",
        )
    return encode(text)


@lru_cache(maxsize=16)
def _encoder(vocabulary: Vocabulary) -> Callable[[str], list[int]] | None:
    tokenizer = vocabulary.tokenizer
    if vocabulary.dialect.has_switch:
        return lambda text: list(tokenizer.encode(text, allow_special_tokens=False))
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return _without_added_tokens(backend) if backend is not None else None


def _without_added_tokens(backend: Any) -> Callable[[str], list[int]]:
    """Build the same tokenizer with no added tokens: `split_special_tokens` would leave half of them."""
    from tokenizers import Tokenizer

    content = json.loads(backend.to_str())
    content["added_tokens"] = []
    content["post_processor"] = None
    bare = Tokenizer.from_str(json.dumps(content))
    return lambda text: list(bare.encode(text, add_special_tokens=False).ids)
