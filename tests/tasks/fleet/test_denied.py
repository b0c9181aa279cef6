"""A server, or a proxy in front of one, that refuses: the error blames the key only where one is set."""

from typing import Any

import attrs
import pytest
from aiohttp import web

from tasks.errors import SurroundingsError
from tasks.fleet.ensure import ensure_servers
from tasks.sglang.client import ServerClient
from tests.support.scripted import Scripted, requests, scripted_server, settings

KEYED = "the API key that servers.api_key_env names is wrong, or a proxy in front refuses (not for you)"
BARE = (
    "it asks for an API key and none is set (servers.api_key_env), or a proxy in front refuses (not for you)"
)


def _forbid(server: Scripted, name: str) -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.json_response({"error": "not for you"}, status=403)

    setattr(server, name, refuse)


@pytest.mark.parametrize(("key", "words"), [("sk-wrong", KEYED), (None, BARE)], ids=["a key", "no key"])
@pytest.mark.parametrize(
    ("handler", "path"), [("_info", "/server_info"), ("generate", "/generate")], ids=["info", "probe"]
)
async def test_a_refusal_says_what_to_look_at(key: str | None, words: str, handler: str, path: str) -> None:
    """403 to what is asked first: told at once, by whether the job names a key, with what the server said."""
    async with scripted_server() as server:
        await server.stop()
        _forbid(server, handler)
        await server.start_again()
        with pytest.raises(SurroundingsError) as caught:
            await ensure_servers(attrs.evolve(settings(server.url), api_key=key))
    assert str(caught.value) == f"{server.url}{path}: HTTP 403: {words}"


@pytest.mark.parametrize(("key", "words"), [("sk-wrong", KEYED), (None, BARE)], ids=["a key", "no key"])
async def test_a_refused_row_says_the_same(key: str | None, words: str) -> None:
    """403 to a row of a server that was open before."""
    async with scripted_server() as server:

        async def refuse(body: dict[str, Any], before: int) -> web.Response:
            return web.json_response({"error": "not for you"}, status=403)

        server.hook = refuse
        access = attrs.evolve(settings(server.url), api_key=key).access
        async with ServerClient(server.url, access) as client:
            with pytest.raises(SurroundingsError) as caught:
                await client.generate(requests(1)[0], {}, 100)
    assert str(caught.value) == f"{server.url}/generate: HTTP 403: {words}"
