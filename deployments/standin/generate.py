"""POST /generate."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
from aiohttp import web

from deployments.standin.engine import QueueFullError
from deployments.standin.errors import ApiError, bad_body, queue_full
from deployments.standin.fault_arrivals import arrive, look
from deployments.standin.fault_replies import Known, spoiled
from deployments.standin.fault_sendings import send
from deployments.standin.generation import Generation
from deployments.standin.intake import Intake, intake, read_body
from deployments.standin.replies import reply
from deployments.standin.server import Server

THINK_TOKENS = ("<think>", "</think>")


class Generate:
    """The handler and what it needs."""

    def __init__(self, server: Server) -> None:
        """Bind to a server."""
        self._server = server
        self._tokenizer = None if server.arguments.skip_tokenizer_init else server.tokenizer
        think = (server.tokenizer.token_to_id(token) for token in THINK_TOKENS)
        self._think_ids = tuple(token for token in think if token is not None)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """One request, single, batch or stream."""
        server = self._server
        server.counters.requests += 1
        await arrive(server)
        if request.content_type != "application/json":
            raise bad_body(("model_attributes_type", ("body",), "Input should be a valid dictionary", ""))
        body = read_body(await request.read())
        try:
            taken = intake(body, server.frame, self._tokenizer, server.in_flight)
        except ApiError as error:
            if body.get("stream") is not True:
                raise
            return await _stream(request, _error_chunks(error))
        await look(server, taken.generations)
        return await self._run(request, taken)

    async def _run(self, request: web.Request, taken: Intake) -> web.StreamResponse:
        server, generations = self._server, taken.generations
        try:
            server.submit(generations)
        except QueueFullError:
            if not taken.stream:
                raise queue_full() from None
            return await _stream(request, self._refused_chunks(taken))
        try:
            if taken.stream:
                return await _stream(request, self._chunks(taken))
            for generation in generations:
                while generation.finish is None:
                    generation.changed.clear()
                    await generation.changed.wait()
            items = [self._item(generation.snapshot(), taken) for generation in generations]
            return await send(request, items[0] if taken.single else items, server)
        finally:
            server.forget(generations)

    def _item(self, generation: Generation, taken: Intake) -> dict[str, Any]:
        """The reply item of a snapshot."""
        server = self._server
        item = reply(
            generation,
            self._tokenizer,
            server.weight_version,
            server.arguments.enable_metrics,
            taken.echo_prompt,
        )
        ends = server.defaults.get("eos_token_id") or sorted(server.frame.end_ids)
        known = Known(
            generation.prompt,
            self._think_ids,
            ends[0] if isinstance(ends, list) else ends,
            server.frame.vocabulary,
            generation.stops.limit,
        )
        return spoiled(item, known, server.switches, server.counters)

    async def _chunks(self, taken: Intake) -> AsyncIterator[dict[str, Any]]:
        """Cumulative chunks of all items, each as often as its generation moved."""
        pending = dict(enumerate(taken.generations))
        while pending:
            waits = [asyncio.ensure_future(g.changed.wait()) for g in pending.values()]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
            for index, generation in list(pending.items()):
                if not generation.changed.is_set():
                    continue
                generation.changed.clear()
                now = generation.snapshot()
                if now.finish is not None:
                    del pending[index]
                item = self._item(now, taken)
                generation.sent = True
                yield item if taken.single else {**item, "index": index}

    async def _refused_chunks(self, taken: Intake) -> AsyncIterator[dict[str, Any]]:
        for generation in taken.generations:
            generation.finish = {
                "type": "abort",
                "message": "The request queue is full.",
                "status_code": 503,
                "err_type": None,
            }
            yield self._item(generation, taken)


async def _error_chunks(error: ApiError) -> AsyncIterator[dict[str, Any]]:
    message = error.body["error"] if isinstance(error.body, dict) else str(error.body)
    text = message["message"] if isinstance(message, dict) else message
    yield {
        "error": {"message": text, "type": "invalid_request_error", "code": error.status, "retryable": False}
    }


async def _stream(request: web.Request, chunks: AsyncIterator[dict[str, Any]]) -> web.StreamResponse:
    """Send chunks as server-sent events, then [DONE]."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    async for chunk in chunks:
        await response.write(b"data: " + orjson.dumps(chunk) + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response
