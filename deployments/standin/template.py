"""Messages to prompt text and ids, with the model folder's own chat template and tokenizer."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer


def _tojson(value: Any, indent: int | None = None) -> str:
    """JSON as transformers' templates write it: unescaped text, keys in their own order."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


class ChatTemplate:
    """`chat_template.jinja` and `tokenizer.json` of one model folder."""

    def __init__(self, folder: Path) -> None:
        """Load both files; raises FileNotFoundError if one is missing."""
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = _tojson
        self._template = environment.from_string((folder / "chat_template.jinja").read_text(encoding="utf-8"))
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def text(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None = None,
        **arguments: Any,
    ) -> str:
        """The prompt as text, generation prompt included; `arguments` go to the template."""
        return self._template.render(
            messages=list(messages),
            tools=list(tools) if tools else None,
            add_generation_prompt=True,
            **arguments,
        )

    def encode(self, text: str) -> list[int]:
        """Ids of a text; control tokens spelled in it become control ids, nothing is added."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def prompt(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None = None,
        **arguments: Any,
    ) -> list[int]:
        """The prompt as ids."""
        return self.encode(self.text(messages, tools, **arguments))
