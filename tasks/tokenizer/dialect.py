"""What one chat template wants: its field for reasoning, the form of tool arguments, how text becomes ids."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import attrs

from tasks.errors import TokenizerError

Message = dict[str, Any]

REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
"""Names under which templates and clients carry an assistant's reasoning."""

_FIELD = re.compile(r"""(?:\.|\[['"]|get\(['"])(reasoning_content|reasoning|thinking)\b(?!\s*\()""")
_PROBE_ARGUMENTS = '{"x": 1}'


@attrs.frozen(slots=True, eq=False)
class Dialect:
    """How to speak to one tokenizer's chat template.

    Args:
        tokenizer: a transformers tokenizer.
        template: text of its chat template ("" with a Python encoder).
        encoder: renders messages where the model has a Python encoder instead of a template.
        reasoning_fields: message fields from which the template reads reasoning.
        arguments: whether tool arguments are handed over as JSON text or as a mapping.
        has_switch: whether it is Kimi's kind of tokenizer: `encode` takes `allow_special_tokens`, and is a
            fast path only without other arguments.
    """

    tokenizer: Any
    template: str
    encoder: Callable[..., str] | None = None
    reasoning_fields: tuple[str, ...] = ("reasoning_content",)
    arguments: Literal["text", "mapping"] = "text"
    has_switch: bool = False

    def text(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        args: Mapping[str, Any],
        generation: bool = True,
    ) -> str:
        """Render to text, as `apply_chat_template(tokenize=False)` of transformers 4.57 and 5.x does.

        Raises:
            Exception: whatever the template raises; `render` turns it into a RowError.
        """
        if self.encoder is not None:
            return self.encoder(list(messages), tools, dict(args), generation)
        rendered = self.tokenizer.apply_chat_template(
            list(messages),
            tools=list(tools) if tools else None,
            tokenize=False,
            add_generation_prompt=generation,
            **args,
        )
        return str(rendered)

    def encode(self, text: str) -> list[int]:
        """Encode rendered text: control tokens become their ids, nothing is added."""
        if self.has_switch:
            return list(self.tokenizer.encode(text))
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is not None:  # the same ids without transformers' settings of truncation: safe in threads
            return list(backend.encode(text, add_special_tokens=False).ids)
        return list(self.tokenizer.encode(text, add_special_tokens=False))


def discover_dialect(tokenizer: Any, args: Mapping[str, Any], encoder: Callable[..., str] | None) -> Dialect:
    """Find out what the chat template of `tokenizer` wants, by reading it and by rendering probes.

    Raises:
        TokenizerError: when there is no chat template, or none of the probes renders.
    """
    template = "" if encoder else chat_template(tokenizer)
    if not template and encoder is None:
        raise TokenizerError(
            "the tokenizer has no chat template: expected chat_template.jinja, a chat_template in "
            "tokenizer_config.json, or a Python encoder in encoding/ (with model.trust_remote_code)"
        )
    fields = tuple(dict.fromkeys(_FIELD.findall(template))) if template else ("reasoning_content",)
    has_switch = "allow_special_tokens" in inspect.signature(tokenizer.encode).parameters
    dialect = Dialect(tokenizer, template, encoder, fields, has_switch=has_switch)
    return attrs.evolve(dialect, arguments=_arguments_form(dialect, args))


def chat_template(tokenizer: Any) -> str:
    """Return the text of the tokenizer's chat template, "" for none."""
    template = getattr(tokenizer, "chat_template", None) or ""
    if isinstance(template, Mapping):
        template = template.get("default", "")
    return str(template)


def tool_probe(arguments: Any, name: str = "look") -> list[Message]:
    """Return a conversation that ends on a tool's result."""
    call = {
        "id": f"functions.{name}:0",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
    return [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "name": name, "content": "Seen."},
    ]


def _arguments_form(dialect: Dialect, args: Mapping[str, Any]) -> Literal["text", "mapping"]:
    """Prefer the verbatim text where the template prints it as it is, else a mapping."""
    try:
        rendered = dialect.text(tool_probe(_PROBE_ARGUMENTS), None, args)
    except Exception:  # noqa: BLE001 - a template raises what it likes; the other form is tried instead
        return "mapping"
    return "text" if _PROBE_ARGUMENTS in rendered else "mapping"
