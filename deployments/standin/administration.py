"""Admin calls of SGLang, and the stand-in's own: /standin/faults and /standin/counters."""

from typing import Any

from aiohttp import web

from deployments.standin.errors import bad_value, json_response
from deployments.standin.intake import read_body
from deployments.standin.reasoning import split_reasoning
from deployments.standin.server import Server


class Administration:
    """The handlers."""

    def __init__(self, server: Server) -> None:
        """Bind to a server."""
        self._server = server

    async def flush_cache(self, _: web.Request) -> web.Response:
        """GET or POST /flush_cache."""
        if self._server.in_flight:
            return web.Response(status=400, text="Flush cache failed.\n")
        return web.Response(
            text="Cache flushed.\nPlease check backend logs for more details. (When there are running "
            "or waiting requests, the operation will not be performed.)\n"
        )

    async def abort_request(self, request: web.Request) -> web.Response:
        """POST /abort_request: 200 whatever happens.

        A rid in flight takes every rid that starts with it along; another one is ignored, as genuine.
        """
        body = read_body(await request.read())
        if body.get("abort_all"):
            self._server.engine.abort(lambda _: True)
        elif (prefix := str(body.get("rid") or "")) in self._server.in_flight:
            self._server.engine.abort(lambda rid: rid.startswith(prefix))
        return web.Response()

    async def pause(self, request: web.Request) -> web.Response:
        """POST /pause_generation."""
        mode = (await _optional_body(request)).get("mode", "abort")
        if mode not in ("abort", "retract", "in_place"):
            raise bad_value(f"mode must be abort, retract or in_place, got {mode}.")
        self._server.engine.pause(mode)
        return json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def resume(self, _: web.Request) -> web.Response:
        """POST /continue_generation."""
        self._server.engine.resume()
        return json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def separate_reasoning(self, request: web.Request) -> web.Response:
        """POST /separate_reasoning: works without the flag."""
        text = str(read_body(await request.read()).get("text", ""))
        reasoning, content = split_reasoning(text)
        return json_response({"reasoning_text": reasoning, "text": content})

    async def get_faults(self, _: web.Request) -> web.Response:
        """GET /standin/faults: what is on."""
        return json_response(self._server.switches.report())

    async def set_faults(self, request: web.Request) -> web.Response:
        """POST /standin/faults {"name": argument | true | null, ...}: switch faults on and off."""
        for name, argument in read_body(await request.read()).items():
            try:
                self._server.switches.set(name, argument)
            except ValueError as error:
                raise bad_value(str(error)) from error
        self._server.apply_switches()
        return json_response(self._server.switches.report())

    async def counters(self, _: web.Request) -> web.Response:
        """GET /standin/counters."""
        return json_response(self._server.counters.report())


async def _optional_body(request: web.Request) -> dict[str, Any]:
    raw = await request.read()
    return read_body(raw) if raw else {}
