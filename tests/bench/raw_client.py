"""The floor in Python: HTTP by hand on a bare `asyncio.Protocol`, orjson, int32; no library needs less."""

import asyncio
from collections.abc import Iterator
from typing import cast
from urllib.parse import urlsplit

import numpy as np
import orjson

from tasks.rows.records import Request
from tests.bench.rivals import Ids, Work, body

HEAD = b"POST /generate HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


class Slot(asyncio.Protocol):
    """One connection that sends row after row; `done` is resolved when none is left."""

    def __init__(self, host: str, rows: Iterator[Request], kept: dict[str, Ids]) -> None:
        self._host, self._rows, self._kept = host.encode(), rows, kept
        self._buffer = bytearray()
        self._row_id = ""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)
        self._next()

    def data_received(self, data: bytes) -> None:
        """Take a reply when it is whole."""
        self._buffer += data
        gap = self._buffer.find(b"\r\n\r\n")
        if gap < 0:
            return
        head = bytes(self._buffer[:gap]).lower()
        size = int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        if len(self._buffer) < gap + 4 + size:
            return
        if not head.startswith(b"http/1.1 200"):
            raise AssertionError(head)
        reply = orjson.loads(memoryview(self._buffer)[gap + 4 :])
        self._kept[self._row_id] = np.array(reply["output_ids"], np.int32)
        self._buffer = bytearray()
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        """End; early only when the server closed."""
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("closed by the server"))

    def _next(self) -> None:
        request = next(self._rows, None)
        if request is None:
            self.done.set_result(None)
            self._transport.close()
            return
        self._row_id = request.row_id
        data = orjson.dumps(body(request), option=orjson.OPT_SERIALIZE_NUMPY)
        self._transport.write(HEAD % (self._host, len(data)) + data)


async def raw_protocol(work: Work) -> int:
    """Make every row over `window` connections."""
    loop, where, kept = asyncio.get_running_loop(), urlsplit(work.url), dict[str, Ids]()
    rows = iter(work.requests)
    slots = []
    for _ in range(min(work.window, len(work.requests))):
        made = await loop.create_connection(
            lambda: Slot(where.netloc, rows, kept), where.hostname, where.port
        )
        slots.append(made[1].done)
    await asyncio.gather(*slots)
    return len(kept)
