"""Clients whose imports alone would show in the memory of the others: httpx, OpenAI, requests."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import httpx
import numpy as np
import openai
import orjson
import requests as requests_library

from tasks.rows.records import Request
from tests.bench.load import Record
from tests.bench.rivals import Ids, Work, body, plain_body

OPENAI: Final[dict[str, Any]] = {"api_key": "none", "max_retries": 0}


async def httpx_pool(work: Work) -> int:
    """Httpx + orjson, one client without limits, a pool of workers (slime-like transport)."""
    kept: dict[str, Ids] = {}
    rows = iter(work.requests)

    async def worker(client: httpx.AsyncClient) -> None:
        for request in rows:
            data = orjson.dumps(body(request), option=orjson.OPT_SERIALIZE_NUMPY)
            reply = await client.post(f"{work.url}/generate", content=data)
            kept[request.row_id] = np.array(orjson.loads(reply.content)["output_ids"], np.int32)

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=None, trust_env=False) as client:
        await asyncio.gather(*(worker(client) for _ in range(work.window)))
    return len(kept)


async def async_openai(work: Work) -> int:
    """AsyncOpenAI over chat completions: text comes back, and ids are lost."""
    kept: dict[str, str] = {}
    rows = iter(work.records)

    async def worker(client: openai.AsyncOpenAI) -> None:
        for record in rows:
            reply = await client.chat.completions.create(
                model="stub", messages=[dict(m) for m in record.messages], max_tokens=65536
            )
            kept[record.record_id] = reply.choices[0].message.content or ""

    async with openai.AsyncOpenAI(
        base_url=f"{work.url}/v1", api_key="none", max_retries=0, timeout=None
    ) as client:
        await asyncio.gather(*(worker(client) for _ in range(work.window)))
    return len(kept)


async def specforge_like(work: Work) -> int:
    """A thread pool of at most 64, a new OpenAI client per row, over chat."""

    def one(record: Record) -> str:
        with openai.OpenAI(base_url=f"{work.url}/v1", **OPENAI) as client:
            reply = client.chat.completions.create(
                model="stub", messages=[dict(m) for m in record.messages], max_tokens=65536
            )
        return reply.choices[0].message.content or ""

    return await _threads(one, work.records, min(64, work.window))


async def requests_threads(work: Work) -> int:
    """A thread pool with one `requests` session per row."""

    def one(request: Request) -> Ids:
        with requests_library.Session() as session:
            session.trust_env = False
            reply = session.post(f"{work.url}/generate", json=plain_body(request), timeout=600)
        return np.array(reply.json()["output_ids"], np.int32)

    return await _threads(one, work.requests, min(64, work.window))


async def _threads(one: Callable[[Any], Any], rows: list[Any], threads: int) -> int:
    def all_rows() -> int:
        with ThreadPoolExecutor(threads) as pool:
            return len(list(pool.map(one, rows)))

    return await asyncio.to_thread(all_rows)


SLOW: Final[dict[str, Callable[[Work], Awaitable[int]]]] = {
    "httpx": httpx_pool,
    "AsyncOpenAI": async_openai,
    "SpecForge-like": specforge_like,
    "threads+requests": requests_threads,
}
