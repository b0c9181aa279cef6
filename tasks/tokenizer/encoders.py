"""Models that render prompts with a Python encoder in their repository instead of a chat template."""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from tasks.errors import TokenizerError

PLACES = ("encoding/encoding_*.py", "encoding_*.py")
"""Where DeepSeek-V3.2 and later keep theirs."""


@attrs.frozen(slots=True, eq=False)
class PythonEncoder:
    """`encode_messages(messages, thinking_mode, …) -> str` of a DeepSeek repository as a chat template.

    Args:
        encode: that function.
    """

    encode: Callable[..., str]

    def __call__(
        self,
        messages: list[dict[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        args: dict[str, Any],
        generation: bool,
    ) -> str:
        """Render messages; tools ride on the system message, as the encoder wants them."""
        mode = args.pop("thinking_mode", "chat")
        if tools:
            if not messages or messages[0]["role"] != "system":
                messages = [{"role": "system", "content": ""}, *messages]
            messages = [{**messages[0], "tools": list(tools)}, *messages[1:]]
        return str(self.encode(messages, thinking_mode=mode, **args))


def find_encoder(folder: Path, trusted: bool) -> PythonEncoder | None:
    """Load the Python encoder in `folder`; None when a template does that work there.

    Raises:
        TokenizerError: when there is an encoder and no leave to run it, or it has no `encode_messages`.
    """
    found = [path for place in PLACES for path in sorted(folder.glob(place))]
    if not found or (folder / "chat_template.jinja").is_file():
        return None
    if not trusted:
        raise TokenizerError(
            f"{found[0]}: this model renders prompts with its own Python code: set model.trust_remote_code "
            "and model.revision"
        )
    spec = importlib.util.spec_from_file_location(f"rawseq_{found[0].stem}", found[0])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    encode = getattr(module, "encode_messages", None)
    if encode is None:
        raise TokenizerError(f"{found[0]}: expected a function encode_messages")
    return PythonEncoder(encode)
