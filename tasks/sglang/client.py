"""One SGLang server over aiohttp: health, introspection, generate, abort.

Every call has a timeout but `generate`: long answers take as long as they take, and a read timeout would bias
the data to short ones. Its caller watches the server and cancels the call: see `watch` and `attempts`.
"""

import asyncio
import time
import uuid
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

import aiohttp
import attrs
import orjson

from tasks.errors import ServerError, SurroundingsError
from tasks.job.redaction import redact
from tasks.rows.records import Completion, Request
from tasks.sglang.clock import loop_seconds
from tasks.sglang.info import Loads, ServerInfo, listed_workers, read_info, read_loads
from tasks.sglang.outcomes import BUSY, DENIED, AttemptError, denied, error_message, is_foreign
from tasks.sglang.protocol import Sent, build_payload, read_reply
from tasks.sglang.wire import Exchange, read_bounded

KEEPALIVE_SECONDS: Final = 4.0
"""SGLang closes idle connections after 5 s (`SGLANG_TIMEOUT_KEEP_ALIVE`); ours go first."""

INFO_BYTES: Final = 16 << 20
"""Bound of every body that is not a generation."""

REPLY_BYTES_PER_ID: Final = 256
"""Bound of a generation's body per id of its cap: digits, comma, and the id's text escaped."""

_UNSENT: Final = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
_TROUBLE: Final = (aiohttp.ClientError, TimeoutError, OSError)


@attrs.frozen(slots=True)
class Access:
    """How servers are reached.

    Args:
        api_key: sent as a bearer token; never shown.
        connect_timeout_seconds: limit of one TCP connect.
        info_timeout_seconds: limit of every call except generation.
    """

    api_key: str | None = attrs.field(default=None, repr=False)
    connect_timeout_seconds: float = 5.0
    info_timeout_seconds: float = 30.0


def open_session(access: Access) -> aiohttp.ClientSession:
    """Return the session that all servers of a process share: no connection limit, no cookies, no proxies."""
    headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
    if access.api_key:
        headers["Authorization"] = f"Bearer {access.api_key}"
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=headers,
        trust_env=False,
    )


class ServerClient:
    """One server. An async context manager; closes its session only if it opened it.

    Args:
        url: base URL.
        access: key and timeouts.
        session: shared session; None to open one.
    """

    def __init__(self, url: str, access: Access, session: aiohttp.ClientSession | None = None) -> None:
        self.url = url.rstrip("/")
        self.access = access
        self.version = ""
        self._given = session
        self._session = session
        self._exchange: Exchange | None = None

    async def __aenter__(self) -> Self:
        if self._session is None:
            self._session = open_session(self.access)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._given is None and self._session is not None:
            await self._session.close()
            self._session = None
        self._exchange = None

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        timeout_seconds: float | None = None,
        most_bytes: int = INFO_BYTES,
    ) -> tuple[int, bytes]:
        """Make one bounded call, return (status, body); `AttemptError` when no whole reply came in time."""
        if self._session is None:
            raise RuntimeError(f"{self.url}: the client is not open")
        limits = aiohttp.ClientTimeout(
            total=timeout_seconds or self.access.info_timeout_seconds,
            sock_connect=self.access.connect_timeout_seconds,
        )
        data = None if body is None else orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
        try:
            async with self._session.request(
                method, self.url + path, data=data, timeout=limits, allow_redirects=False
            ) as reply:
                length = None if "Content-Encoding" in reply.headers else reply.content_length
                got = await read_bounded(reply.content, length, most_bytes, f"{self.url}{path}")
                return reply.status, got
        except _TROUBLE as error:
            raise _no_reply(f"{self.url}{path}", error) from error

    def check_allowed(self, path: str, status: int, body: bytes) -> None:
        """Raise `SurroundingsError` for a status that says that this request's sender may not ask."""
        if status in DENIED:
            raise denied(f"{self.url}{path}", status, body, keyed=bool(self.access.api_key))

    async def health(self, timeout_seconds: float | None = None) -> tuple[str, str]:
        """Return (`ready` | `loading` | `absent` | `foreign`, what was seen); raises for no state.

        SGLang's `/health` generates one id: it takes at least 1 s and up to 20 s under load, answers 503
        while the server warms up, drains or is stuck, and does not ask for a key. `foreign`: what answers is
        no SGLang server, or does not speak HTTP.
        """
        try:
            status, body = await self.call("GET", "/health", timeout_seconds=timeout_seconds)
        except AttemptError as error:
            if isinstance(error.__cause__, aiohttp.ClientResponseError):
                return "foreign", "no HTTP: " + redact(" ".join(error.__cause__.message.split()))[:200]
            if isinstance(error.__cause__, aiohttp.ClientConnectionResetError) and (
                greeting := await self._greeting()
            ):
                return "foreign", f"no HTTP: {greeting}"
            return "absent" if error.outcome == "refused" else "loading", str(error)
        if status == 200:
            return "ready", "HTTP 200"
        state = "foreign" if is_foreign(status) else "loading"
        return state, f"HTTP {status} {error_message(body)}".rstrip()

    async def _greeting(self) -> str:
        """Return what a server says before it is asked, "" for nothing: HTTP servers wait.

        uvloop reads it before aiohttp has written its request, which then finds the connection closed.
        """
        at = urlsplit(self.url)
        if at.scheme != "http":
            return ""
        try:
            async with asyncio.timeout(self.access.connect_timeout_seconds):
                reader, writer = await asyncio.open_connection(at.hostname, at.port or 80)
                try:
                    said = await reader.read(200)
                finally:
                    writer.close()
        except (TimeoutError, OSError):
            return ""
        return "" if said.startswith(b"HTTP/") else redact(" ".join(said.decode(errors="replace").split()))

    async def takes_work(self, timeout_seconds: float | None = None) -> bool:
        """Whether a server wants new rows: `/ready` (0.5.21 on) says no while it drains, is paused or unwell.

        SGLang goes on accepting rows after SIGTERM and ends only when none is left: its clients must stop
        first. An older one, which has no such endpoint, is taken to want them.

        Raises:
            AttemptError: no whole reply came.
        """
        status, _ = await self.call("GET", "/ready", timeout_seconds=timeout_seconds)
        return status != 503

    async def not_sglang(self, seen: str) -> SurroundingsError:
        """Return the error for something else that answers here, with how it answers what SGLang serves."""
        told = [seen] if seen else []
        for path in ("/server_info", "/get_server_info", "/model_info", "/get_model_info"):
            try:
                status, body = await self.call("GET", path)
            except AttemptError:
                break
            told.append(f"{path}: HTTP {status} {error_message(body)[:80]}".rstrip())
        return SurroundingsError(f"{self.url}: expected an SGLang server, got " + "; ".join(told))

    async def info(self) -> ServerInfo:
        """Return what the server says of itself, redacted; asks older endpoints where newer ones are missing.

        Raises:
            SurroundingsError: the key is missing or wrong, or nothing here is an SGLang server.
            AttemptError: no whole reply came.
        """
        server = await self._first("/server_info", "/get_server_info")
        model = await self._first("/model_info", "/get_model_info")
        models = await self._first("/v1/models")
        if not server and not model:
            raise await self.not_sglang("")
        info = read_info(self.url, server, model, models)
        if info.gateway:
            info = attrs.evolve(info, workers=listed_workers(await self._first("/workers")))
        self.version = info.version
        return info

    async def _first(self, *paths: str) -> dict[str, Any]:
        for path in paths:
            status, body = await self.call("GET", path)
            self.check_allowed(path, status, body)
            if status != 200:
                continue
            try:
                value = orjson.loads(body)
            except orjson.JSONDecodeError:
                continue
            return value if isinstance(value, dict) else {"workers": value}
        return {}

    async def loads(self, timeout_seconds: float | None = None) -> Loads | None:
        """Return how busy the server is; None when it has no such endpoint.

        Raises:
            AttemptError: no whole reply came.
        """
        for path in ("/v1/loads?include=core", "/get_load"):
            status, body = await self.call("GET", path, timeout_seconds=timeout_seconds)
            if status == 200:
                try:
                    return read_loads(orjson.loads(body))
                except orjson.JSONDecodeError:
                    return None
        return None

    async def generate(
        self, request: Request, sampling: dict[str, Any], vocab_size: int, rid: str | None = None
    ) -> Completion:
        """Send one row and return what came back. No read timeout: cancel the call, then `abort(rid)`.

        Raises:
            AttemptError: this attempt came to nothing.
            RowError: the row can never be made.
            SurroundingsError: the key is missing or wrong.
        """
        rid = rid or uuid.uuid4().hex
        data = build_payload(request, sampling, rid, vocab_size, self.version)
        most_bytes = INFO_BYTES + REPLY_BYTES_PER_ID * request.max_new_tokens
        begun = loop_seconds()
        try:
            status, body = await self._generations().post(data, most_bytes)
        except _TROUBLE as error:
            raise _no_reply(f"{self.url}/generate", error) from error
        self.check_allowed("/generate", status, body)
        sent = Sent(self.url, self.version, rid, loop_seconds() - begun, time.time())
        return read_reply(request, status, body, sent)

    def _generations(self) -> Exchange:
        if self._exchange is None:
            if self._session is None:
                raise RuntimeError(f"{self.url}: the client is not open")
            connect_seconds = self.access.connect_timeout_seconds
            self._exchange = Exchange(self._session, f"{self.url}/generate", connect_seconds)
        return self._exchange

    async def abort(self, rid: str) -> None:
        """Ask the server to drop one request; a server that cannot be reached has dropped it already."""
        with suppress(AttemptError):
            await self.call("POST", "/abort_request", {"rid": rid}, timeout_seconds=5.0)

    async def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """POST one JSON object, return the JSON object that came back: for the probe.

        Raises:
            ServerError: another status than 200, or no JSON object.
            SurroundingsError: the key is missing or wrong.
        """
        status, raw = await self.call(
            "POST", path, body, timeout_seconds=max(120.0, self.access.info_timeout_seconds)
        )
        self.check_allowed(path, status, raw)
        if status != 200:
            refused = 400 <= status < 500 and status not in BUSY
            outcome = "bad_request" if refused else "failed"
            raise AttemptError(outcome, f"{self.url}{path}: HTTP {status}: {error_message(raw)}")
        try:
            value = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise ServerError(f"{self.url}{path}: expected JSON, got {error}") from None
        if not isinstance(value, dict):
            raise ServerError(f"{self.url}{path}: expected one JSON object, got {type(value).__name__}")
        return value

    async def chat(self, messages: list[dict[str, Any]], max_tokens: int, **fields: Any) -> dict[str, Any]:
        """Return the reply of `/v1/chat/completions`; raises as `ask`."""
        body = {"model": "default", "messages": messages, "max_tokens": max_tokens, **fields}
        return await self.ask("/v1/chat/completions", body)


def _no_reply(where: str, error: Exception) -> AttemptError:
    said = redact(str(error)) or type(error).__name__
    if isinstance(error, _UNSENT):
        return AttemptError("refused", f"{where}: no connection: {said}", counts=False)
    return AttemptError("transport", f"{where}: no whole reply: {said}")
