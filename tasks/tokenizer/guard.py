"""Proofs that a tokenizer is the one that the job means. Each refuses with what it expected and got."""

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.errors import TokenizerError
from tasks.tokenizer.dialect import Dialect, Message, tool_probe

PROBE_TEXT = (
    "I don't think we've tested 1234567 or 3.14 yet; they'll say it's fine.\n"
    "हिन्दी में कुछ शब्द और ไทยภาษา กำลังทดสอบ\n"
    "東京は晴れです。你好，世界！ 한국어도\n"
    "def f(x):\n    return  x+1\t# tabs\t\tand   spaces\n\n\n"
    "Ünïcödé ﬁ ½ 🙂🏳️‍🌈 https://example.org/a?b=c&d=%20  \r\n end"
)
"""Contractions, digits, combining marks, CJK, code, white space, emoji: where wrong classes differ."""

PROBE: list[Message] = [
    {"role": "user", "content": "Name a prime."},
    {"role": "assistant", "content": "7", "reasoning_content": "Seven is prime."},
    {"role": "user", "content": "And the next one?"},
]


def prove_class(tokenizer: Any, folder: Path) -> None:
    """Check that a model that brings its own tokenizer class got it.

    transformers 5.x answers a missing `trust_remote_code` with a generic class whose text ids differ.

    Raises:
        TokenizerError: when the loaded class is not the one that tokenizer_config.json names.
    """
    config = folder / "tokenizer_config.json"
    named = json.loads(config.read_bytes()).get("auto_map", {}) if config.is_file() else {}
    wanted = named.get("AutoTokenizer") if isinstance(named, Mapping) else named
    names = [name.split(".")[-1] for name in ([wanted] if isinstance(wanted, str) else wanted or []) if name]
    got = type(tokenizer).__name__
    if names and got not in names:
        raise TokenizerError(
            f"{config}: this tokenizer is the repository's own class: expected {' or '.join(names)}, got "
            f"{got}; set model.trust_remote_code and model.revision"
        )
    if not names and (folder / "tiktoken.model").is_file() and not (folder / "tokenizer.json").is_file():
        raise TokenizerError(
            f"{folder}: a tiktoken.model without its tokenizer class (auto_map in tokenizer_config.json): "
            f"{got} would split text by other rules than the model's"
        )


def prove_ids(tokenizer: Any, folder: Path) -> None:
    """Check that the loaded class gives the ids of the model's own tokenizer.json, and adds none.

    A wrong `model_type`, or a missing config.json, makes transformers 5.x load a class with another
    pre-tokenizer: nearly all text then gets other ids, without a word.

    Raises:
        TokenizerError: with the first id that differs.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        return
    from tokenizers import Tokenizer

    wanted = Tokenizer.from_file(str(path)).encode(PROBE_TEXT, add_special_tokens=False).ids
    got = tokenizer.encode(PROBE_TEXT, add_special_tokens=False)
    if wanted != got:
        at = next((i for i, (a, b) in enumerate(zip(wanted, got, strict=False)) if a != b), len(wanted))
        raise TokenizerError(
            f"{path}: {type(tokenizer).__name__} gives other ids than the file itself: at {at} expected "
            f"{wanted[at : at + 4]}, got {got[at : at + 4]}; is config.json with its model_type beside it?"
        )


def prove_control_ids(dialect: Dialect, control: Mapping[str, int]) -> None:
    """Check that each control token's text becomes its one id, and that the id becomes the text.

    Raises:
        TokenizerError: with the first that does not.
    """
    for text, id in control.items():
        got = dialect.encode(text)
        if got != [id]:
            raise TokenizerError(f"control token {text!r}: expected [{id}], got {got}")
        back = dialect.tokenizer.decode([id], skip_special_tokens=False)
        if back != text:
            raise TokenizerError(f"control token {id}: expected {text!r}, got {back!r}")


def prove_one_start(dialect: Dialect, args: Mapping[str, Any], control: Mapping[str, int]) -> None:
    """Check that a prompt does not start with the same control token twice (an added BOS on the template's).

    Raises:
        TokenizerError: when it does.
    """
    ids = dialect.encode(_renders(dialect, args)[0])
    if len(ids) > 1 and ids[0] == ids[1] and ids[0] in control.values():
        raise TokenizerError(
            f"prompts start with id {ids[0]} twice: the template and the tokenizer both add it"
        )


def prove_template_args(dialect: Dialect, args: Mapping[str, Any]) -> None:
    """Check that each template argument changes some prompt, and that none depends on today's date.

    Raises:
        TokenizerError: naming the argument that changes nothing, or the date that must be pinned.
    """
    prove_steady(dialect, args)
    known = dialect.template
    for name, value in args.items():
        rest = {key: other for key, other in args.items() if key != name}
        if _renders(dialect, args) == _renders(dialect, rest) and not _is_default(dialect, args, name):
            hint = f"; the template reads {_arguments_hint(known)}" if known else ""
            raise TokenizerError(
                f"model.template_args.{name}: {value!r} changes no prompt of this template{hint}"
            )


def prove_steady(dialect: Dialect, args: Mapping[str, Any]) -> None:
    """Check that the prompt of tomorrow is the prompt of today.

    Raises:
        TokenizerError: when the template prints the current date and no argument pins it.
    """
    if "strftime_now" not in dialect.template:
        return
    today = datetime.datetime.now(datetime.UTC)
    rendered = _renders(dialect, args)
    for form in ("%Y-%m-%d", "%d %b %Y", "%d %B %Y"):
        if any(today.strftime(form) in text for text in rendered):
            raise TokenizerError(
                "the chat template prints today's date, so a resumed job would make other prompts: pin it "
                "with a template argument (Llama: date_string) or a system message"
            )


def _is_default(dialect: Dialect, args: Mapping[str, Any], name: str) -> bool:
    """Whether the argument merely says what the template does anyway: some other value changes a prompt."""
    value = args[name]
    others: list[Any] = (
        [not value] if isinstance(value, bool) else ["enabled", "disabled", "low", "high", "max"]
    )
    here = _renders(dialect, args)
    return any(_renders(dialect, {**args, name: other}) != here for other in others)


def _renders(dialect: Dialect, args: Mapping[str, Any]) -> list[str]:
    """Render the probes that an argument may change: system, history, tools."""
    texts = []
    tools = [{"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {}}}]
    arguments = {"x": 1} if dialect.arguments == "mapping" else '{"x": 1}'
    for messages, given in (
        (PROBE, None),
        ([{"role": "system", "content": "Be brief."}, *PROBE], None),
        (tool_probe(arguments), tools),
    ):
        try:
            texts.append(dialect.text(messages, given, args))
        except Exception as error:  # noqa: BLE001 - a template raises what it likes; that too is an answer
            texts.append(f"{type(error).__name__}: {error}")
    return texts


def _arguments_hint(template: str) -> str:
    known = ("enable_thinking", "thinking", "thinking_mode", "reasoning_effort", "clear_thinking")
    read = [
        name for name in (*known, "preserve_thinking", "date_string", "drop_thinking") if name in template
    ]
    return ", ".join(read) or "none that we know of"
