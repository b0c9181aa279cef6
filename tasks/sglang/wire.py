"""One POST after another to one path of a server, over aiohttp's connections but not through its session.

For every request a session builds a URL, merged headers, a timer, a task and two objects: a quarter of what a
row costs (`tests/bench/profiles.md`). Here the head is made once, by aiohttp, and only the body's length is
added. Connections (pool, TLS, keep-alive, half-closed sockets) and the reading of replies stay aiohttp's.
"""

import asyncio
from typing import Final

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from tasks.sglang.outcomes import AttemptError

_LENGTH: Final = "Content-Length"
_ENCODING: Final = "Content-Encoding"


class Exchange:
    """Sends bodies to one URL. Made on the event loop that uses it; owns no connection.

    Args:
        session: whose connections and default headers are used; it says nothing of cookies or proxies.
        url: full URL.
        connect_seconds: limit of one TCP connect.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, connect_seconds: float) -> None:
        if session.connector is None:
            raise RuntimeError(f"{url}: the session is closed")
        self._url = url
        self._connector = session.connector
        self._limits = aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds)
        self._request = aiohttp.ClientRequest(
            "POST", URL(url), headers=session.headers, loop=asyncio.get_running_loop(), session=session
        )
        self._head = _head(self._request)

    async def post(self, data: bytes, most_bytes: int) -> tuple[int, bytes]:
        """Send one body; return (status, body of the reply). No read timeout: cancel it.

        A cancelled or broken exchange closes its connection, by which the server knows.

        Raises:
            AttemptError: `malformed` when more than `most_bytes` come.
            aiohttp.ClientError, TimeoutError, OSError: no connection, or no whole reply.
        """
        connection = await self._connect()
        try:
            assert connection.protocol is not None
            assert connection.transport is not None
            connection.protocol.set_response_params(read_until_eof=True)
            connection.transport.write(b"%b%d\r\n\r\n%b" % (self._head, len(data), data))
            status, length, content = await _begun(connection)
            body = await read_bounded(content, length, most_bytes, self._url)
        except BaseException:
            connection.close()
            raise
        connection.release()
        return status, body

    async def _connect(self) -> "aiohttp.connector.Connection":
        try:
            return await self._connector.connect(self._request, [], self._limits)
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError(f"no connection within the limit: {self._url}") from error


def _head(request: aiohttp.ClientRequest) -> bytes:
    """Return a request's head up to the value of its length.

    Raises:
        ValueError: a header holds a line break.
    """
    lines = [f"POST {request.url.raw_path_qs} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in request.headers.items() if name != _LENGTH]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a request header holds a line break: look at the API key")
    return "\r\n".join([*lines, f"{_LENGTH}: "]).encode()


async def _begun(connection: "aiohttp.connector.Connection") -> tuple[int, int | None, aiohttp.StreamReader]:
    """Return (status, told length, content) of the reply; interim ones (`100 Continue`) are passed over."""
    assert connection.protocol is not None
    while True:
        try:
            message, content = await connection.protocol.read()
        except HttpProcessingError as error:
            raise aiohttp.ClientPayloadError(f"no HTTP: {error.message}") from error
        if not 100 <= message.code < 200:
            length = None if _ENCODING in message.headers else message.headers.get(_LENGTH)
            return message.code, None if length is None else int(length), content


async def read_bounded(content: aiohttp.StreamReader, length: int | None, most_bytes: int, url: str) -> bytes:
    """Return a reply's whole body.

    Args:
        content: of the reply, decompressed.
        length: bytes that it says it has; None where it does not say, or says it of compressed ones.
        most_bytes: bound of the body as it is used.
        url: for messages.

    Raises:
        AttemptError: `malformed` when more than `most_bytes` come.
    """
    if length is not None and length <= most_bytes:
        return await content.read()
    parts, size = [], 0
    async for part in content.iter_any():
        size += len(part)
        if size > most_bytes:
            raise AttemptError("malformed", f"{url}: expected at most {most_bytes} bytes, got more")
        parts.append(part)
    return b"".join(parts)
