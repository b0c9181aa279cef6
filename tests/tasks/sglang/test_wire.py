"""The POST beneath aiohttp's session, over real sockets: what goes out, what comes back, what breaks."""

import asyncio
import contextlib
import socket
import ssl
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tasks.sglang.client import Access, ServerClient, open_session
from tasks.sglang.outcomes import AttemptError
from tasks.sglang.wire import Exchange
from tests.support.certificates import write_certificate

FULL = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"
CLOSING = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello"
MOST = 100

pytestmark = pytest.mark.timeout(60)
"""What never ends when the exchange is broken must not take the suite's ten minutes."""


class Raw:
    """A server that keeps the bytes of every request and answers with given bytes."""

    def __init__(self, answer: bytes, closes: bool) -> None:
        self.answer, self.closes = answer, closes
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self.ended = asyncio.Event()
        self.asked = asyncio.Event()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = next(
                    int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length")
                )
                self.heads.append(head)
                self.bodies.append(await reader.readexactly(size))
                self.asked.set()
                writer.write(self.answer)
                await writer.drain()
                if self.closes:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            self.ended.set()
        finally:
            writer.close()


@asynccontextmanager
async def raw_server(answer: bytes, closes: bool = False) -> AsyncIterator[Raw]:
    """Run one on a free port."""
    raw = Raw(answer, closes)
    async with await asyncio.start_server(raw.serve, "127.0.0.1", 0) as server:
        raw.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/prefix/generate"
        yield raw
        server.close()


def _exchange(session: aiohttp.ClientSession, url: str) -> Exchange:
    return Exchange(session, url, 5.0)


async def test_the_server_sees_what_a_session_would_have_sent() -> None:
    """Held to aiohttp itself: every header it would send, and nothing else."""
    access = Access(api_key="sk-key")
    async with raw_server(FULL) as raw, open_session(access) as session:
        async with session.post(raw.url, data=b'{"a":1}') as reply:
            assert await reply.read() == b"hello"
        assert await _exchange(session, raw.url).post(b'{"a":1}', MOST) == (200, b"hello")
    by_session, by_exchange = (sorted(head.split(b"\r\n")) for head in raw.heads)
    assert by_exchange == by_session
    assert b"Authorization: Bearer sk-key" in by_exchange
    assert raw.heads[1].startswith(b"POST /prefix/generate HTTP/1.1\r\n")
    assert raw.bodies == [b'{"a":1}'] * 2
    assert raw.connections == 1


@pytest.mark.parametrize(
    ("answer", "closes", "status"),
    [
        pytest.param(FULL, False, 200, id="told_length"),
        pytest.param(CHUNKED, False, 200, id="chunked"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" + FULL, False, 200, id="after_an_interim_reply"),
        pytest.param(FULL.replace(b"200 OK", b"503 Busy"), False, 503, id="an_error_status"),
        pytest.param(
            FULL.replace(b"200 OK", b"307 Off\r\nLocation: /x"), False, 307, id="no_redirect_followed"
        ),
        pytest.param(CLOSING, True, 200, id="closing"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\nhello", True, 200, id="until_the_end"),
    ],
)
async def test_a_whole_reply_comes_back(answer: bytes, closes: bool, status: int) -> None:
    """However its length is told; connections are kept when the server keeps them."""
    async with raw_server(answer, closes) as raw, open_session(Access()) as session:
        exchange = _exchange(session, raw.url)
        for _ in range(3):
            assert await exchange.post(b"{}", MOST) == (status, b"hello")
        assert raw.connections == (3 if closes else 1)


@pytest.mark.parametrize(
    ("answer", "closes", "expected", "told"),
    [
        pytest.param(FULL.replace(b"5", b"500"), False, AttemptError, "at most 3 bytes", id="told_too_long"),
        pytest.param(CHUNKED, False, AttemptError, "at most 3 bytes", id="chunks_too_long"),
        pytest.param(b"SSH-2.0-server\r\n\r\n", False, aiohttp.ClientError, "no HTTP", id="no_http"),
        pytest.param(FULL.replace(b"5", b"five"), False, aiohttp.ClientError, "", id="length_is_no_number"),
        pytest.param(FULL[:-2].replace(b": 5", b": 3\r\nX: y"), False, None, "", id="exactly_the_limit"),
        pytest.param(FULL.replace(b"5", b"50")[:-2], True, aiohttp.ClientError, "", id="ends_in_its_body"),
        pytest.param(b"", True, aiohttp.ClientError, "disconnected", id="ends_without_a_reply"),
    ],
)
async def test_a_broken_reply_is_an_error_and_its_connection_is_not_used_again(
    answer: bytes, closes: bool, expected: type[Exception] | None, told: str
) -> None:
    """After it the same exchange gets whole replies, over a new connection."""
    async with raw_server(answer, closes) as raw, open_session(Access()) as session:
        exchange = _exchange(session, raw.url)
        if expected is None:
            assert await exchange.post(b"{}", 3) == (200, b"hel")
            return
        with pytest.raises(expected) as caught:
            await exchange.post(b"{}", 3)
        assert told.lower() in str(caught.value).lower()
        raw.answer, raw.closes = FULL, False
        assert await exchange.post(b"{}", MOST) == (200, b"hello")
        assert raw.connections == 2


async def test_a_cancelled_exchange_closes_its_connection() -> None:
    """SGLang drops the request; a connection that is kept would hand its reply to the next row."""
    async with raw_server(b"") as raw, open_session(Access()) as session:
        task = asyncio.create_task(_exchange(session, raw.url).post(b"{}", MOST))
        await raw.asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(raw.ended.wait(), 10)


async def test_no_connection_is_told_as_such() -> None:
    """A port where nobody listens."""
    async with raw_server(FULL) as raw:
        url = raw.url
    async with open_session(Access()) as session:
        with pytest.raises(aiohttp.ClientConnectorError, match="Cannot connect"):
            await _exchange(session, url).post(b"{}", MOST)


async def test_a_connection_that_takes_too_long_is_told_as_such() -> None:
    """A listener whose queue is full drops what comes: nothing was sent, so the attempt does not count."""
    with contextlib.ExitStack() as sockets:
        listener = sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        where = listener.getsockname()
        for _ in range(4):
            waiting = sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(where)
        async with open_session(Access()) as session:
            exchange = Exchange(session, f"http://127.0.0.1:{where[1]}/generate", 0.2)
            with pytest.raises(aiohttp.ConnectionTimeoutError, match="within the limit"):
                await exchange.post(b"{}", MOST)


@pytest.mark.parametrize("trusted", [True, False], ids=["trusted", "unknown"])
async def test_tls_is_the_connectors(trusted: bool, tmp_path: Path) -> None:
    """What a session would refuse is refused here, before a byte of the request goes out."""
    certificate, key = write_certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    trust = ssl.create_default_context(cafile=certificate if trusted else None)
    raw = Raw(FULL, False)
    async with (
        await asyncio.start_server(raw.serve, "127.0.0.1", 0, ssl=context) as server,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session,
    ):
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/generate"
        if trusted:
            assert await _exchange(session, url).post(b"{}", MOST) == (200, b"hello")
        else:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await _exchange(session, url).post(b"{}", MOST)
        assert len(raw.heads) == int(trusted)


async def test_a_line_break_in_the_key_sends_nothing() -> None:
    """It would be a header of its own."""
    async with raw_server(FULL) as raw, open_session(Access(api_key="sk\r\nX-Other: 1")) as session:
        with pytest.raises(ValueError, match="line break") as caught:
            _exchange(session, raw.url)
        assert "sk" not in str(caught.value)
        assert raw.heads == []


@pytest.mark.parametrize("through", ["exchange", "client"])
async def test_a_reply_is_bounded_as_it_is_used(through: str) -> None:
    """Thirty kilobytes on the wire that unpack to thirty megabytes: the reply is malformed, nothing else."""
    packed = zlib.compress(bytes(30 << 20))
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: deflate\r\nContent-Length: {len(packed)}\r\n\r\n"
    async with raw_server(head.encode() + packed) as raw, open_session(Access()) as session:
        client, exchange = ServerClient(raw.url, Access(), session), _exchange(session, raw.url)
        most = 1 << 20
        asked = (
            exchange.post(b"{}", most) if through == "exchange" else client.call("POST", "", {}, 5.0, most)
        )
        with pytest.raises(AttemptError, match="expected at most 1048576 bytes, got more"):
            await asked
