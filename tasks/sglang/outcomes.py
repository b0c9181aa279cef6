"""Who must act on a reply that is no completion: the error map of SGLang's statuses and bodies (pure).

Bodies were read on SGLang 0.5.23; they can echo a whole prompt, so they are cut before they reach a message.
"""

from typing import Any, Final

import orjson

from tasks.errors import RowError, ServerError, SurroundingsError
from tasks.job.redaction import redact
from tasks.rows.verdicts import Code

MESSAGE_BYTES: Final = 500
"""Error bodies can echo a whole prompt (megabytes); this much of one gets into a message."""

_TOO_LONG: Final = (
    "is longer than the model's context length",
    "exceeds the maximum allowed length",
    "exceeds the model's maximum context length",
)
_DUPLICATE_RID: Final = "Duplicate request ID"
"""SGLang tells these 400s apart only by their text (`srt/managers/tokenizer_manager.py`)."""

BUSY: Final = frozenset({408, 429, 503})
"""Statuses that say "later": nothing is shown by them."""

CUT: Final = frozenset({502, 504, 524})
"""Statuses that SGLang never gives: what stands in front of it got no answer, or none in time."""

DENIED: Final = frozenset({401, 403})
_ABSENT: Final = frozenset({404, 405})


class AttemptError(ServerError):
    """One attempt at a row came to nothing; another may do better.

    Args:
        outcome: `busy`, `failed`, `aborted`, `no_output`, `malformed`, `duplicate_rid`, `bad_request`,
            `refused` (never sent), `transport` (sent, no whole reply), `cut` (a proxy's answer came instead),
            `lost` (given up waiting).
        message: where, expected, got.
        counts: whether the attempt counts against the row (a busy server's does not).
    """

    def __init__(self, outcome: str, message: str, *, counts: bool = True) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.counts = counts


def read_error(row_id: str, status: int, body: bytes, url: str) -> Exception:
    """Return the error that says who must act on a reply with another status than 200."""
    message = error_message(body)
    where = f"{url}: {row_id}: HTTP {status}: {message}"
    if status in CUT or ((status in BUSY or status >= 500) and is_page(body)):
        return AttemptError("cut", f"{where} (from a proxy in front of it)")
    if status in DENIED:
        return SurroundingsError(
            f"{url}: HTTP {status}: the API key is missing or wrong, or a proxy in front refuses ({message})"
        )
    if status in _ABSENT or 300 <= status < 400:
        return SurroundingsError(
            f"{url}: expected an SGLang server with /generate, got HTTP {status} ({message})"
        )
    if status in BUSY:
        return AttemptError("busy", where, counts=False)
    if 400 <= status < 500:
        return _bad_request(where, message)
    return AttemptError("failed", where)


def is_page(body: bytes) -> bool:
    """Whether a body is HTML: a proxy's page, for SGLang answers in JSON or plain text."""
    return body[:1] != b"{" and body[:256].lstrip()[:1] == b"<"


def denied(where: str, status: int, body: bytes, *, keyed: bool) -> SurroundingsError:
    """Return the error for a server that lets nobody in; `keyed`: the request carried the job's API key."""
    why = (
        "the API key that servers.api_key_env names is wrong"
        if keyed
        else ("it asks for an API key and none is set (servers.api_key_env)")
    )
    told = f" ({message})" if (message := error_message(body)) else ""
    return SurroundingsError(f"{where}: HTTP {status}: {why}, or a proxy in front refuses{told}")


def _bad_request(where: str, message: str) -> Exception:
    if _DUPLICATE_RID in message:
        return AttemptError("duplicate_rid", where)
    if any(phrase in message for phrase in _TOO_LONG):
        return RowError(Code.PROMPT_TOO_LONG, where)
    return RowError(Code.POISON, f"the server refuses this request: {where}")


def is_foreign(status: int) -> bool:
    """Whether a status of `/health` shows that no SGLang server answers: it says 200, or 503 while it loads.

    A proxy in front of one says 5xx while it has nothing behind it, and may say 408 or 429.
    """
    return not (200 <= status < 300 or status in BUSY or status >= 500)


def error_message(body: bytes) -> str:
    """Return the text of an error body, cut to `MESSAGE_BYTES`.

    SGLang has three JSON shapes (`{"message"}`, `{"error": "text"}`, `{"error": {"message"}}`), FastAPI's
    `{"detail"}`, and plain text.
    """
    if len(body) > 64 * MESSAGE_BYTES:
        return cut_body(body)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return cut_body(body)
    for key in ("error", "message", "detail"):
        if isinstance(value, dict) and key in value:
            value = value[key]
    return short_value(value) if not isinstance(value, str) else cut_body(value.encode())


def cut_body(body: bytes) -> str:
    """Return the head of a body as text, with its size when it was cut."""
    text = redact(body[: 8 * MESSAGE_BYTES].decode("utf-8", "replace"))
    cut = text.encode()[:MESSAGE_BYTES].decode("utf-8", "ignore")
    return cut if len(body) <= MESSAGE_BYTES else f"{cut}… ({len(body)} bytes)"


def short_value(value: Any) -> str:
    """Return a value's repr, cut to what a message can hold."""
    text = redact(repr(value if not isinstance(value, list) else value[:8]))
    return text if len(text) <= 200 else f"{text[:200]}…"
