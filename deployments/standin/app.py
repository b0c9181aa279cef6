"""Routes, authorisation, and the life of the process."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress

from aiohttp import web
from aiohttp.typedefs import Middleware

from deployments.standin.administration import Administration
from deployments.standin.arguments import NOTICE, Arguments
from deployments.standin.chat import Chat
from deployments.standin.errors import ApiError
from deployments.standin.fault_arrivals import never
from deployments.standin.generate import Generate
from deployments.standin.information import Information
from deployments.standin.server import Server

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

BODY_LIMIT = 512 * 1024**2  # bytes
KEEPALIVE_SECONDS = 5.0  # SGLANG_TIMEOUT_KEEP_ALIVE of a genuine server
DRAIN_POLL_SECONDS = 0.05
OPEN_PATHS = ("/health", "/ready", "/metrics")
ADMIN_PATHS = ("/flush_cache", "/abort_request", "/pause_generation", "/continue_generation")
logger = logging.getLogger("standin")


def application(server: Server) -> web.Application:
    """All routes of a server."""
    app = web.Application(client_max_size=BODY_LIMIT, middlewares=[_middleware(server)])
    generate, chat = Generate(server), Chat(server)
    information, administration = Information(server), Administration(server)
    posts: dict[str, Handler] = {
        "/generate": generate.handle,
        "/v1/chat/completions": chat.handle,
        "/flush_cache": administration.flush_cache,
        "/abort_request": administration.abort_request,
        "/pause_generation": administration.pause,
        "/continue_generation": administration.resume,
        "/separate_reasoning": administration.separate_reasoning,
        "/standin/faults": administration.set_faults,
    }
    gets: dict[str, Handler] = {
        "/health": information.health,
        "/health_generate": information.health,
        "/ready": information.ready,
        "/model_info": information.model_info,
        "/get_model_info": information.model_info,
        "/server_info": information.server_info,
        "/get_server_info": information.server_info,
        "/v1/models": information.models,
        "/v1/loads": information.loads,
        "/metrics": information.metrics,
        "/flush_cache": administration.flush_cache,
        "/standin/faults": administration.get_faults,
        "/standin/counters": administration.counters,
    }
    app.add_routes([web.post(path, handler) for path, handler in posts.items()])
    app.add_routes([web.get(path, handler) for path, handler in gets.items()])
    app.router.add_put("/generate", generate.handle)
    return app


def _middleware(server: Server) -> Middleware:
    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        if server.deaf:
            return await never()
        try:
            _authorise(request, server.arguments)
            return await handler(request)
        except ApiError as error:
            return error.response()
        except ConnectionError:  # the client left; aiohttp knows what to do
            raise
        except web.HTTPException as error:
            return ApiError(error.status, {"detail": error.reason}).response()
        except Exception:
            logger.exception("%s %s", request.method, request.path)
            return ApiError(500, "Internal Server Error").response()

    return answer


def _authorise(request: web.Request, arguments: Arguments) -> None:
    """Check the bearer key: admin paths need the admin key if there is one, and then refuse the other."""
    if request.path.startswith(OPEN_PATHS) or request.method == "OPTIONS":
        return
    admin = request.path in ADMIN_PATHS and arguments.admin_api_key is not None
    key = arguments.admin_api_key if admin else arguments.api_key
    if key is not None and request.headers.get("Authorization") != f"Bearer {key}":
        raise ApiError(401, {"error": "Unauthorized"})


async def serve(arguments: Arguments) -> None:
    """Load, open the port, warm up, serve, and drain after SIGTERM."""
    loop = asyncio.get_running_loop()
    logger.info("%s", NOTICE)
    server = Server(arguments, loop)
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    switches = server.switches
    await asyncio.sleep(float(switches.value("refuse_seconds") or 0))
    keepalive = float(
        switches.value("keepalive") or os.environ.get("SGLANG_TIMEOUT_KEEP_ALIVE") or KEEPALIVE_SECONDS
    )
    await loop.run_in_executor(None, server.warm_up)
    runner = web.AppRunner(
        application(server),
        access_log=None,
        handler_cancellation=True,
        keepalive_timeout=keepalive,
        shutdown_timeout=1.0,
    )
    await runner.setup()
    server.engine.start()
    server.apply_switches()
    await web.TCPSite(runner, arguments.host, arguments.port, backlog=2048).start()
    logger.info("http://%s:%d serves %s", arguments.host, arguments.port, arguments.served_model_name)
    with suppress(TimeoutError):  # still loading, unless SIGTERM comes first
        await asyncio.wait_for(ended.wait(), float(switches.value("loading_seconds") or 0) or 1e-9)
    server.starting = False
    await ended.wait()
    await _drain(server)
    await runner.cleanup()
    if not server.engine.frozen:
        server.engine.stop()


async def _drain(server: Server) -> None:
    """Wait until nothing is in flight; new requests are still taken. Unhealthy servers do not wait."""
    server.draining = True
    logger.info("SIGTERM: draining %d requests", len(server.in_flight))
    while server.in_flight and not server.unhealthy and not server.engine.frozen:  # noqa: ASYNC110
        await asyncio.sleep(DRAIN_POLL_SECONDS)


def run(arguments: Arguments) -> None:
    """Serve until SIGTERM or SIGINT."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with suppress(ImportError):  # not on Windows
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(serve(arguments))
