"""What users would pick instead, each in the way its own documentation or code shows.

`-like` names a peer's transport and way of waiting, written to its described behaviour, not its code.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import aiohttp
import attrs
import numpy as np
import orjson
from numpy.typing import NDArray

from tasks.rows.records import Request
from tests.bench.load import Record

Ids = NDArray[np.int32]


@attrs.frozen(slots=True)
class Work:
    """The rows of one measurement.

    Args:
        url: the server.
        requests: rendered rows.
        records: the same rows as messages, for chat.
        window: rows in flight.
    """

    url: str
    requests: list[Request]
    records: list[Record]
    window: int


def body(request: Request) -> dict[str, Any]:
    """Return the JSON body of one row."""
    params = {"temperature": 0.7, "max_new_tokens": request.max_new_tokens}
    return {"rid": request.row_id, "input_ids": request.input_ids, "sampling_params": params}


def plain_body(request: Request) -> dict[str, Any]:
    """Return the same with a list of Python ints, for JSON writers that know no arrays."""
    return body(request) | {"input_ids": request.input_ids.tolist()}


def open_session(**options: Any) -> aiohttp.ClientSession:
    """Return a session with the connector that rawseq uses."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0, **options)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))


async def pull(
    work: Work, rows: Iterator[Request], session: aiohttp.ClientSession, kept: dict[str, Ids]
) -> None:
    """Fetch rows one after another until none is left: one slot of the window."""
    for request in rows:
        data = orjson.dumps(body(request), option=orjson.OPT_SERIALIZE_NUMPY)
        async with session.post(f"{work.url}/generate", data=data) as reply:
            answer = orjson.loads(await reply.read())
        kept[request.row_id] = np.array(answer["output_ids"], np.int32)


async def bare(work: Work) -> int:
    """Aiohttp + orjson + uvloop + int32, a pool of workers: the floor that rawseq is held against."""
    kept: dict[str, Ids] = {}
    rows = iter(work.requests)
    async with open_session() as session:
        await asyncio.gather(*(pull(work, rows, session, kept) for _ in range(work.window)))
    return len(kept)


async def barrier(work: Work, times: int = 1) -> int:
    """The same, one `gather` per window-sized batch: a batch waits for its slowest row."""
    kept: dict[str, Ids] = {}
    size = work.window * times
    async with open_session() as session:
        for first in range(0, len(work.requests), size):
            rows = iter(work.requests[first : first + size])
            await asyncio.gather(*(pull(work, rows, session, kept) for _ in range(work.window)))
    return len(kept)


async def barrier4(work: Work) -> int:
    """One `gather` per batch of four windows."""
    return await barrier(work, 4)


async def datatrove_like(work: Work) -> int:
    """A connection per request, stdlib json, `asyncio.wait(FIRST_COMPLETED)` as the window."""
    kept: dict[str, Ids] = {}

    async def fetch(session: aiohttp.ClientSession, request: Request) -> None:
        async with session.post(
            f"{work.url}/generate", data=json.dumps(plain_body(request)).encode()
        ) as reply:
            answer = json.loads(await reply.text())
        kept[request.row_id] = np.array(answer["output_ids"], np.int32)

    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        pending: set[asyncio.Task[None]] = set()
        for request in work.requests:
            if len(pending) >= work.window:
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            pending.add(asyncio.create_task(fetch(session, request)))
        await asyncio.gather(*pending)
    return len(kept)


RIVALS: Final[dict[str, Callable[[Work], Awaitable[int]]]] = {
    "bare": bare,
    "barrier": barrier,
    "barrier4": barrier4,
    "datatrove-like": datatrove_like,
}
