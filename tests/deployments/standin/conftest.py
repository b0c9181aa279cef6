"""A shared stand-in process, and a way to talk to it."""

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from deployments.standin.arguments import MODEL
from deployments.standin.launch import Standin, start_standin
from deployments.standin.template import ChatTemplate

QUICK = {"STANDIN_HEALTH_SECONDS": "0", "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0"}


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, content type and body of a reply; JSON is decoded."""

    status: int
    kind: str
    body: Any


class Caller:
    """One client session to one base URL."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.session = aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=60))

    async def __call__(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """Send JSON, or bytes as they are with a JSON content type."""
        extra = dict(headers or {})
        if isinstance(body, bytes):
            options: dict[str, Any] = {"data": body}
            extra.setdefault("Content-Type", "application/json")
        else:
            options = {} if body is None else {"json": body}
        async with self.session.request(method, path, headers=extra, **options) as reply:
            decoded = await (reply.json() if reply.content_type == "application/json" else reply.text())
            return Answer(reply.status, reply.content_type, decoded)

    async def generate(
        self, ids: list[int], top: dict[str, Any] | None = None, **sampling: Any
    ) -> dict[str, Any]:
        """One generation, greedy unless told otherwise."""
        params = {"temperature": 0, "max_new_tokens": 64, **sampling}
        answer = await self("POST", "/generate", {"input_ids": ids, "sampling_params": params, **(top or {})})
        assert answer.status == 200, answer
        result: dict[str, Any] = answer.body
        return result

    async def switch(self, **faults: Any) -> None:
        """Switch faults on or off."""
        assert (await self("POST", "/standin/faults", faults)).status == 200

    async def counters(self) -> dict[str, Any]:
        """The stand-in's counters."""
        report: dict[str, Any] = (await self("GET", "/standin/counters")).body
        return report


@pytest.fixture(scope="session")
def template() -> ChatTemplate:
    """Template and tokenizer of the bundled model."""
    return ChatTemplate(MODEL)


@pytest.fixture(scope="session")
def sum_prompt(template: ChatTemplate) -> list[int]:
    """The ids of "What is 2+2?"."""
    return template.prompt([{"role": "user", "content": "What is 2+2?"}])


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Standin]]:
    """Start a stand-in of one test with flags and environment; all are ended with the test."""
    started: list[Standin] = []

    def begin(*argv: str, **env: str) -> Standin:
        started.append(start_standin(argv, tmp_path / f"standin-{len(started)}.log", env={**QUICK, **env}))
        return started[-1]

    yield begin
    for standin in started:
        standin.kill()


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[str], Caller]]:
    """Open callers that are closed with the test."""
    opened: list[Caller] = []

    def open_caller(url: str) -> Caller:
        opened.append(Caller(url))
        return opened[-1]

    yield open_caller
    for caller in opened:
        await caller.session.close()


@pytest.fixture(scope="module")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standin]:
    """One stand-in for the tests of a module: parsers on, seeds honoured, metrics on."""
    log = tmp_path_factory.mktemp("standin") / "log"
    argv = [
        "--reasoning-parser",
        "kimi_k2",
        "--tool-call-parser",
        "kimi_k2",
        "--enable-deterministic-inference",
    ]
    standin = start_standin([*argv, "--enable-metrics", "--context-length", "512"], log, env=QUICK)
    yield standin
    standin.kill()


@pytest.fixture
async def call(standin: Standin, connect: Callable[[str], Caller]) -> Caller:
    """A caller of the module's stand-in."""
    return connect(standin.url)
