"""Error replies with the bodies of SGLang 0.5.23: four shapes, each where the genuine server uses it."""

from typing import Any

import orjson
from aiohttp import web


class ApiError(Exception):
    """A request that is answered with an error: HTTP status and body."""

    def __init__(self, status: int, body: Any) -> None:
        """`body` is JSON data, or a str for text/plain."""
        super().__init__(f"HTTP {status}")
        self.status, self.body = status, body

    def response(self) -> web.Response:
        """The reply to send."""
        if isinstance(self.body, str):
            return web.Response(status=self.status, text=self.body)
        return web.Response(status=self.status, body=orjson.dumps(self.body), content_type="application/json")


def bad_value(message: str) -> ApiError:
    """400 of the request logic: {"error": {"message": ...}}."""
    return ApiError(400, {"error": {"message": message}})


def bad_contract(message: str) -> ApiError:
    """400 of the JSON contract: {"error": "..."}."""
    return ApiError(400, {"error": message})


def bad_body(*found: tuple[str, tuple[str | int, ...], str, Any]) -> ApiError:
    """400 of pydantic: (kind, place, message, value) each; it echoes the value, however long."""
    names = ("type", "loc", "msg", "input")
    details = [dict(zip(names, each, strict=True)) for each in found]
    head = f"{len(details)} validation error{'s' if len(details) > 1 else ''}:\n"
    return ApiError(
        400,
        {
            "object": "error",
            "message": head + "".join(f"  {detail}\n" for detail in details),
            "type": "Bad Request",
            "param": None,
            "code": 400,
        },
    )


def queue_full() -> ApiError:
    """503 of --max-queued-requests."""
    return ApiError(
        503,
        {
            "object": "error",
            "message": "The request queue is full.",
            "type": "503",
            "param": None,
            "code": 503,
        },
    )


def json_response(body: Any, status: int = 200) -> web.Response:
    """A JSON reply; NaN and infinity become null, as genuine."""
    return web.Response(status=status, body=orjson.dumps(body), content_type="application/json")
