"""Secrets in text from outside, replaced by `***`: log tails, output of commands, replies, exceptions.

Whoever takes such text into an error, a log line or an artifact redacts it first, before it cuts it: half a
secret is not recognised. What stays legible: ids, paths, numbers, names of variables that hold a secret.
"""

import logging
import os
import re
import shlex
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from json import dumps
from typing import Any, Final
from urllib.parse import quote

HIDDEN: Final = "***"

SECRET_VARIABLES: Final = (
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "PREFECT_API_KEY",
    "PREFECT_API_AUTH_STRING",
)
"""Variables that rawseq, or a library that it calls, reads a secret from: hidden wherever they stand."""

LEAST_CHARACTERS: Final = 6
"""Shorter values are hidden where their name tells them, not anywhere: they would hide ordinary words."""

_NAME: Final = (
    r"(?:(?i:api[-_]?key|passw(?:or)?d|passphrase|secret|access[-_]?key|private[-_]?key|secret[-_]?key"
    r"|auth[-_]?string|(?:auth|hf|hub|access|session|security|bearer|refresh)[-_]?token)"
    r"|(?<!EOS)(?<!BOS)(?<!PAD)(?<!UNK)_TOKEN)s?(?:_?\d+)?"
)
"""How the name of a secret ends; `api_key_env`, which names a variable, does not end so, nor `max_tokens`."""

_QUOTED: Final = r"""(?:'(?:\\.?|[^'\\\n])*(?:'|$)|"(?:\\.?|[^"\\\n])*(?:"|$))"""
_VALUE: Final = (
    r"(?!(?:None|null|true|false|True|False|\*\*\*)(?![^\s,;)\]}]))"
    rf"""(?:[|>][-+]?[ \t]*\n[ \t]+[^\n]+|\\+["'].*?(?:\\+["']|$)|[bru]?{_QUOTED}+|[^\s"']+)"""
)
"""What a name is followed by: a YAML block, quoted inside of quoted, quoted (perhaps cut short), one word."""

_PATTERNS: Final = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        # a header, whatever its scheme
        r"((?i:authorization|x-api-key|cookie)\\*[\"']?[ \t]*[:=,][ \t]*b?\\*[\"']?"
        r"(?:(?i:bearer|basic|token)[ \t]+)?)"
        r"[^\s\"'\\,]+",
        r"(\b(?i:bearer)[ \t]+)(?!(?i:tokens?|auth(?:entication)?|scheme)(?![^\s,]))[^\s\"'\\,]+",
        # a whole word of a command line in quotes, as a shell or Python shows it: '--api-key=a b'
        rf"(?<=')(--[\w-]{{0,40}}?{_NAME}=)(?:[^'\n]|'\"'\"')*(?=')",
        # one line of an environment
        rf"(^[ \t]*(?:export[ \t]+)?[A-Z0-9_]{{0,60}}?{_NAME}=)(?![\"'])\S+",
        # name=value, name: value, "name": "value", ("name", "value")
        rf"({_NAME}(?:\\*[\"'])?[ \t]*(?:=>|[:=]+)[ \t]*){_VALUE}",
        rf"({_NAME}\\*[\"'],\s*(?=[bru]?\\*[\"'])){_VALUE}",
        # --name value
        rf"(--[\w-]{{0,40}}?{_NAME}[ \t]+)(?!--){_VALUE}",
        # addresses: user and password (which may hold slashes: then a colon that begins no port stands before
        # the first), query
        r"(://)[^\s/@\"'<>]*@",
        r"(://)(?!\[)(?![^\s/:@\"']+:\d{1,5}[/\s])[^\s/:@\"']*:[^\s\"'<>]*@",
        r"(://[^\s\"'<>?#]*[?#])[^\s\"'<>]+",
        r"((?i:[?&](?:sig|signature|token|key|x-amz-[\w-]+))=)[^\s\"'&]+",
        r"(-----BEGIN [A-Z ]*PRIVATE KEY-----)(?s:.*?)(?=-----END|\Z)",
    )
)

_noted: set[str] = set()


def note_secret(value: str | None) -> None:
    """Let `redact` hide a value from now on, wherever it stands: called by whoever reads a secret."""
    if value is not None and len(value) >= LEAST_CHARACTERS:
        _noted.add(value)


def redact(text: str, also: Collection[str] = ()) -> str:
    """Return text from outside with `***` for every secret in it.

    Args:
        text: whole, not cut yet.
        also: values to hide wherever they stand, beside those that were noted and those of the environment.
    """
    for value in sorted(_spellings(also), key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    for pattern in _PATTERNS:
        text = pattern.sub(rf"\1{HIDDEN}" + ("@" if pattern.pattern.endswith("@") else ""), text)
    return text


class RedactedRecord(logging.LogRecord):
    """Line of a log whose message and traceback hold no secret, whoever formats it and wherever it goes."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.exc_info and self.exc_info[0]:
            self.exc_text = redact("".join(traceback.format_exception(*self.exc_info)).rstrip())

    def getMessage(self) -> str:
        """See `logging.LogRecord.getMessage`."""
        return redact(super().getMessage())


def shown_command(argv: Sequence[str]) -> str:
    """Return a command line for a person: quoted for a shell, without its secrets."""
    flag, words = "", []
    for word in argv:
        name, equals, _ = word.partition("=")
        if equals and _is_secret(name):
            words.append(f"{name}={HIDDEN}")
        else:
            words.append(HIDDEN if _is_secret(flag) and not word.startswith("--") else word)
        flag = word if word.startswith("--") else ""
    return redact(shlex.join(words).replace(f"'{HIDDEN}'", HIDDEN), secrets_of(argv))


def secrets_of(argv: Sequence[str]) -> set[str]:
    """Return the values of a command line that belong to flags with the name of a secret."""
    found: set[str] = set()
    for flag, following in zip(argv, [*argv[1:], ""], strict=True):
        name, equals, value = flag.partition("=")
        if name.startswith("--") and _is_secret(name):
            found.add(value if equals else following)
    return {value for value in found if value and not value.startswith("--")}


def secret_variables(env: Mapping[str, str]) -> set[str]:
    """Return the values of an environment whose names say that they are secret, too short ones left out."""
    return {value for name, value in env.items() if _is_secret(name) and len(value) >= LEAST_CHARACTERS}


def secrets_in(text: str) -> set[str]:
    """Return the values that have the name of a secret in a configuration file of lines `name: value`."""
    found = re.finditer(rf"^[ \t]*[\"']?[\w-]*?{_NAME}[\"']?[ \t]*[:=][ \t]*([^\n]+)$", text, re.MULTILINE)
    return {value for match in found if (value := match[1].strip().strip("\"'"))}


def _is_secret(name: str) -> bool:
    return re.search(f"{_NAME}$", name) is not None


def _spellings(also: Collection[str]) -> Iterator[str]:
    """Yield every known secret, as it is and as JSON and addresses spell it."""
    read = (os.environ.get(name, "") for name in SECRET_VARIABLES)
    for value in {*_noted, *also, *(v for v in read if len(v) >= LEAST_CHARACTERS)}:
        if value:
            user, _, password = value.partition(":")
            parts = [value, password] if user and len(password) >= LEAST_CHARACTERS else [value]
            for part in parts:
                yield from {part, dumps(part)[1:-1], dumps(part, ensure_ascii=False)[1:-1], quote(part, "")}
