"""Faults in how a finished reply goes out."""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web

from deployments.standin.errors import json_response
from deployments.standin.fault_arrivals import never
from deployments.standin.server import Server

DRIP_SECONDS = 0.05
FLUSH_SECONDS = 0.05  # lets the kernel hand over what was written before a reset discards it


async def _lost(request: web.Request, _: Any, __: str) -> web.StreamResponse:
    return await never()


async def _slow(request: web.Request, body: Any, argument: str) -> web.StreamResponse:
    await asyncio.sleep(float(argument or 1))
    return json_response(body)


async def _reset_before(request: web.Request, _: Any, __: str) -> web.StreamResponse:
    _reset(request)
    return web.Response()


async def _reset_after(request: web.Request, body: Any, _: str) -> web.StreamResponse:
    response = json_response(body)
    await response.prepare(request)
    await response.write_eof()
    await asyncio.sleep(FLUSH_SECONDS)
    _reset(request)
    return response


async def _truncate(request: web.Request, body: Any, _: str) -> web.StreamResponse:
    raw = orjson.dumps(body)
    response = web.StreamResponse(
        headers={"Content-Type": "application/json", "Content-Length": str(len(raw))}
    )
    await response.prepare(request)
    await response.write(raw[: len(raw) // 2])
    await asyncio.sleep(FLUSH_SECONDS)
    if request.transport is not None:
        request.transport.close()
    return response


async def _wrong_json(request: web.Request, body: Any, _: str) -> web.StreamResponse:
    return web.Response(body=orjson.dumps(body)[:-2] + b", ...", content_type="application/json")


async def _drip(request: web.Request, _: Any, __: str) -> web.StreamResponse:
    return await _endless(request, b" ", DRIP_SECONDS)


async def _flood(request: web.Request, _: Any, __: str) -> web.StreamResponse:
    return await _endless(request, b"9," * 65536, 0.0)


async def _endless(request: web.Request, part: bytes, pause: float) -> web.StreamResponse:
    """Send a part again and again, until the client leaves."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    while True:
        await response.write(part)
        await asyncio.sleep(pause)


SENDINGS: dict[str, Callable[[web.Request, Any, str], Awaitable[web.StreamResponse]]] = {
    "lost_reply": _lost,
    "slow_reply": _slow,
    "reset_before_reply": _reset_before,
    "reset_after_reply": _reset_after,
    "truncate_body": _truncate,
    "wrong_json": _wrong_json,
    "drip": _drip,
    "flood": _flood,
}


async def send(request: web.Request, body: Any, server: Server) -> web.StreamResponse:
    """Answer with a JSON body, or as the first fault of the table that acts now has it."""
    for name, sending in SENDINGS.items():
        argument = server.switches.take(name, server.counters)
        if argument is not None:
            return await sending(request, body, argument)
    return json_response(body)


def _reset(request: web.Request) -> None:
    """Close a connection with RST."""
    transport = request.transport
    if transport is None:
        return
    connection = transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
