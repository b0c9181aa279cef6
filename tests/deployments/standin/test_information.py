"""What the server says about itself, who may ask, and its life from start to drain (sglang 0.5.23)."""

import asyncio
import signal
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from deployments.standin.arguments import parse
from deployments.standin.engine import STEPS_PER_LOAD
from deployments.standin.launch import Standin, spawn_standin, start_standin
from tests.deployments.standin.conftest import QUICK, Caller

INFO_PATHS = ("/model_info", "/get_model_info", "/server_info", "/get_server_info")


@pytest.mark.parametrize("path", INFO_PATHS)
async def test_parser_is_reported(call: Caller, path: str) -> None:
    """Old and new paths tell which parser is on."""
    body = (await call("GET", path)).body
    assert body["reasoning_parser"] == "kimi_k2"
    assert body["model_path"].endswith("model")


async def test_server_info(call: Caller) -> None:
    """Server info holds flags, limits, version, and the mark of a stand-in."""
    body = (await call("GET", "/server_info")).body
    assert (body["version"], body["frontend"], body["status"]) == ("0.5.23", "standin", "ready")
    assert body["context_length"] == 512
    assert body["max_req_input_len"] == 512 - 1 - 5
    assert body["allow_auto_truncate"] is False
    assert "--reasoning-parser kimi_k2" in body["launch_command"]
    assert body["internal_states"][0]["effective_max_running_requests_per_dp"] == 32


async def test_models_and_loads(call: Caller) -> None:
    """/v1/models has the context length, /v1/loads the slots and a fresh time."""
    assert (await call("GET", "/v1/models")).body["data"][0]["max_model_len"] == 512
    load = (await call("GET", "/v1/loads?include=core")).body["loads"][0]
    assert (load["num_running_reqs"], load["max_running_requests"]) == (0, 32)


async def test_metrics_need_the_flag(
    call: Caller, start: Callable[..., Standin], connect: Callable[[str], Caller]
) -> None:
    """/metrics is text with --enable-metrics and 404 without."""
    answer = await call("GET", "/metrics")
    assert (answer.status, answer.kind) == (200, "text/plain")
    assert "sglang:num_running_reqs" in answer.body
    assert (await connect(start().url)("GET", "/metrics")).status == 404


async def test_unknown_path_and_method(call: Caller) -> None:
    """404 and 405 look as FastAPI writes them."""
    assert (await call("GET", "/nope")).body == {"detail": "Not Found"}
    answer = await call("GET", "/generate")
    assert (answer.status, answer.body) == (405, {"detail": "Method Not Allowed"})


async def test_health_takes_a_second(start: Callable[..., Standin], connect: Callable[[str], Caller]) -> None:
    """/health is never answered in less than a second, unless generation in it is switched off."""
    loop = asyncio.get_running_loop()
    call = connect(start(STANDIN_HEALTH_SECONDS="1").url)
    begin = loop.time()
    assert (await call("GET", "/health")).status == 200
    assert loop.time() - begin >= 1
    quick = connect(start(STANDIN_HEALTH_SECONDS="60", SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION="0").url)
    assert (await quick("GET", "/health")).status == 200


async def test_load_snapshots_are_renewed_now_and_then(call: Caller) -> None:
    """While ids are made, /v1/loads shows one snapshot for some steps; an idle server's is always new."""

    async def stamp() -> float:
        return float((await call("GET", "/v1/loads")).body["loads"][0]["timestamp"])

    task = asyncio.ensure_future(call.generate([40], max_new_tokens=500, ignore_eos=True))
    stamps = [await stamp()]
    while not task.done():
        stamps.append(await stamp())
    await task
    assert stamps == sorted(stamps)
    assert 3 <= len(set(stamps)) <= 500 / STEPS_PER_LOAD + 5
    assert await stamp() != await stamp()


KEYS = {  # path, key sent, status with api key K and admin key A
    "health is open": ("/health", None, 200),
    "ready is open": ("/ready", None, 200),
    "no key": ("/server_info", None, 401),
    "wrong key": ("/server_info", "X", 401),
    "key": ("/server_info", "K", 200),
    "admin key is no key": ("/server_info", "A", 401),
    "admin with the key": ("/flush_cache", "K", 401),
    "admin with the admin key": ("/flush_cache", "A", 200),
}


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A stand-in with both keys."""
    standin = start_standin(
        ["--api-key", "K", "--admin-api-key", "A"], tmp_path_factory.mktemp("locked") / "log", env=QUICK
    )
    yield standin
    standin.kill()


@pytest.mark.parametrize(("path", "key", "status"), KEYS.values(), ids=KEYS)
async def test_keys(
    locked: Standin, connect: Callable[[str], Caller], path: str, key: str | None, status: int
) -> None:
    """Every path wants its key; server info shows both in clear, as genuine."""
    answer = await connect(locked.url)(
        "GET", path, headers={"Authorization": f"Bearer {key}"} if key else None
    )
    assert answer.status == status
    if status == 401:
        assert answer.body == {"error": "Unauthorized"}
    elif path == "/server_info":
        assert (answer.body["api_key"], answer.body["admin_api_key"]) == ("K", "A")


async def test_loading_server(
    start: Callable[..., Standin], connect: Callable[[str], Caller], tmp_path: Any
) -> None:
    """While it warms up, /health is 503 and /model_info and /generate answer."""
    standin = spawn_standin(["--fault", "loading_seconds=600"], tmp_path / "log", env=QUICK)
    try:
        call = connect(standin.url)
        async with asyncio.timeout(60):
            while True:
                try:
                    health = await call("GET", "/health")
                    break
                except aiohttp.ClientConnectorError:
                    assert standin.process.poll() is None
        assert health.status == 503
        assert (await call("GET", "/ready")).status == 503
        assert (await call("GET", "/model_info")).status == 200
        assert (await call.generate([40], max_new_tokens=1))["output_ids"]
    finally:
        standin.kill()


async def test_drain(start: Callable[..., Standin], connect: Callable[[str], Caller]) -> None:
    """After SIGTERM health is 503 at once, running and new work ends well, then the process goes."""
    standin = start()
    call = connect(standin.url)
    body = {"input_ids": [40], "sampling_params": {"ignore_eos": True, "max_new_tokens": 600}}
    running = asyncio.ensure_future(call("POST", "/generate", body))
    async with asyncio.timeout(20):
        while (await call.counters())["generations_started"] == 0:
            pass
    standin.process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(20):
        while (await call("GET", "/ready")).status != 503:
            pass
    assert (await call("GET", "/health")).status == 503
    assert (await call.generate([40], max_new_tokens=1))["output_ids"]
    assert len((await running).body["output_ids"]) == 600
    assert await asyncio.to_thread(standin.process.wait, 20) == 0


def test_unknown_flags_are_kept() -> None:
    """SGLang flags without a meaning here are accepted in both spellings and reported."""
    arguments = parse(
        ["--mem-fraction-static", "0.5", "--tp-size=2", "--disable-radix-cache", "--chat-template", "x"]
    )
    expected = {"mem_fraction_static": 0.5, "tp_size": 2, "disable_radix_cache": True, "chat_template": "x"}
    assert arguments.others == expected
    assert arguments.launch_command.startswith("--mem-fraction-static 0.5")
