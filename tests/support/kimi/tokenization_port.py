"""Our own small port of Kimi's tokenizer class on tiktoken, as remote code of a test folder.

It has what matters to rawseq: its encode makes ids of every control token's text unless told otherwise, and
it is a slow class without a tokenizer.json. It is no copy of Moonshot AI's file.
"""

import base64
from pathlib import Path
from typing import Any

import tiktoken
from transformers import PreTrainedTokenizer


class TikTokenTokenizer(PreTrainedTokenizer):
    """Text to ids by tiktoken ranks; control tokens and reserved ids behind them."""

    vocab_files_names = {"vocab_file": "tiktoken.model"}  # noqa: RUF012 - as transformers declares it
    model_input_names = ["input_ids", "attention_mask"]  # noqa: RUF012

    def __init__(
        self, vocab_file: str, pattern: str, size: int, controls: dict[str, int], **kwargs: Any
    ) -> None:
        ranks = {}
        for line in Path(vocab_file).read_bytes().splitlines():
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
        names = {id: text for text, id in controls.items()}
        self.special_tokens = {
            names.get(id, f"<|reserved_token_{id}|>"): id for id in range(len(ranks), size)
        }
        self.model = tiktoken.Encoding(
            "kimi-port", pat_str=pattern, mergeable_ranks=ranks, special_tokens=self.special_tokens
        )
        self._size = size
        super().__init__(pattern=pattern, size=size, controls=controls, **kwargs)

    @property
    def vocab_size(self) -> int:
        """All ids, control tokens included."""
        return self._size

    def __len__(self) -> int:
        return self._size

    def get_vocab(self) -> dict[str, int]:
        """Control tokens by text; ordinary ids have no printable name."""
        return dict(self.special_tokens)

    @property
    def added_tokens_decoder(self) -> dict[int, str]:
        """Only the named control tokens, as Kimi's config lists them."""
        return {id: text for text, id in self.special_tokens.items() if "reserved" not in text}

    def encode(self, text: str, allow_special_tokens: bool = True, **kwargs: Any) -> list[int]:
        """Encode as Kimi's fast path does: control tokens in the text become ids unless forbidden."""
        if allow_special_tokens:
            return self.model.encode(text, allowed_special="all")
        return self.model.encode(text, disallowed_special=())

    def decode(self, token_ids: Any, **kwargs: Any) -> str:
        """Decode ids; an id outside the vocabulary is a KeyError, as in Kimi's class."""
        return self.model.decode([token_ids] if isinstance(token_ids, int) else list(token_ids))

    def _tokenize(self, text: str, **kwargs: Any) -> list[str]:
        return [str(id) for id in self.encode(text)]

    def _convert_token_to_id(self, token: str) -> int:
        return self.special_tokens.get(token, 0)

    def _convert_id_to_token(self, index: int) -> str:
        return self.model.decode([index])
