"""Making servers fit: patience, policy, probe; over a scripted server on a real socket."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
from aiohttp import web

from tasks.errors import OperatorError, SurroundingsError, UnfaithfulError
from tasks.fleet.ensure import ServerReport, ensure_servers
from tasks.fleet.fleet import Fleet
from tasks.fleet.server import Server
from tasks.sglang.client import Access, ServerClient
from tasks.sglang.judge import FAITHFUL, UNKNOWN
from tasks.sglang.probe import probe_server
from tests.support.scripted import CLOSER, END, QUICK, Scripted, scripted_server, settings


async def _ensure(server: Scripted, **spec: Any) -> ServerReport:
    (report,) = await ensure_servers(settings(server.url, **spec))
    return report


async def test_a_faithful_server_passes_and_is_shown() -> None:
    """Closer, end and last id forced and returned, a natural answer shown, counts agree."""
    async with scripted_server() as server:
        report = await _ensure(server)
    assert report.probe.verdict == FAITHFUL
    assert {c.name for c in report.probe.checks if c.channel == "generate"} == {
        "closer_forced",
        "end_forced",
        "end_matched",
        "last_id_forced",
        "prompt_count",
        "output_count",
        "in_vocabulary",
        "end_last",
    }
    told = "\n".join(report.lines())
    assert f"{CLOSER}:<{CLOSER}>" in told
    assert "sk-secret" not in told + repr(report.describe())
    described = report.describe()
    assert {"url", "verdict", "checks", "server", "natural"} <= set(described)
    assert described["natural"]["ids"][-1] == END


async def test_a_loading_server_is_waited_for() -> None:
    """503 while it loads, then 200: it passes; the wait is told."""
    told: list[str] = []
    async with scripted_server() as server:
        server.health = 503

        def note(line: str) -> None:
            told.append(line)
            server.health = 200

        (report,) = await ensure_servers(settings(server.url), note)
    assert report.probe.verdict == FAITHFUL
    assert "loading" in told[0]


@pytest.mark.parametrize("health", [503, None], ids=["loading for ever", "absent"])
async def test_a_server_that_never_comes_is_named(health: int | None) -> None:
    """After the limit: which URL, and for how long."""
    async with scripted_server() as server:
        server.health = health or 200
        if health is None:
            await server.stop()
        with pytest.raises(SurroundingsError, match=rf"{server.url}.*for \d+ s"):
            await _ensure(server, ready_timeout_seconds=1.0)


@asynccontextmanager
async def _web_server(status: int, body: str, health: int) -> AsyncIterator[str]:
    """Another web server: one answer to everything, another status for `/health`."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=health if request.path == "/health" else status, text=body)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("status", "body", "health", "words"),
    [
        pytest.param(404, '{"detail":"Not Found"}', 404,
                     "/health: HTTP 404 Not Found; /server_info: HTTP 404", id="404"),
        pytest.param(404, "<html>nginx", 200, "/server_info: HTTP 404 <html>nginx", id="healthy"),
        pytest.param(302, "", 302, "/health: HTTP 302", id="a login page"),
        pytest.param(401, "who are you", 401, "/health: HTTP 401 who are you", id="a password"),
        pytest.param(200, "hello", 200, "/server_info: HTTP 200 hello", id="no JSON"),
    ],
)  # fmt: skip
async def test_another_web_server_is_refused_at_once(status: int, body: str, health: int, words: str) -> None:
    """It is not waited for as if it were loading; the error shows what each of SGLang's paths answered."""
    async with _web_server(status, body, health) as url:
        began = time.monotonic()
        with pytest.raises(SurroundingsError, match=re.escape("expected an SGLang server, got ")) as caught:
            await ensure_servers(settings(url, ready_timeout_seconds=60.0))
    assert time.monotonic() - began < 30.0
    assert words in str(caught.value)
    assert str(caught.value).startswith(url)


async def test_what_speaks_no_http_is_refused_at_once() -> None:
    """An SSH server's greeting: no HTTP, told with what came. It hangs up when it has read our first line."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        await writer.drain()
        await reader.readline()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(SurroundingsError, match=r"expected an SGLang server, got .*no HTTP: .*SSH-2"):
            await ensure_servers(settings(f"http://127.0.0.1:{port}", ready_timeout_seconds=60.0))


async def test_a_proxy_without_a_server_behind_it_is_waited_for() -> None:
    """502 and 503 are what a proxy says of a server that is still starting."""
    async with _web_server(502, "Bad Gateway", 502) as url:
        with pytest.raises(SurroundingsError, match=r"expected a ready SGLang server, not so for \d+ s"):
            await ensure_servers(settings(url, ready_timeout_seconds=1.0))


def _changed(change: Callable[[dict[str, Any]], None]) -> Callable[[Scripted], None]:
    def apply(server: Scripted) -> None:
        right = server.reply

        def reply(body: dict[str, Any], **changes: Any) -> dict[str, Any]:
            answer = right(body, **changes)
            change(answer)
            return answer

        server.reply = reply  # type: ignore[method-assign]

    return apply


def _strip(answer: dict[str, Any]) -> None:
    answer["output_ids"] = [i for i in answer["output_ids"] if i != CLOSER]


def _prefix(answer: dict[str, Any]) -> None:
    answer["output_ids"] = [1, 2, 3, *answer["output_ids"]]


def _no_end(answer: dict[str, Any]) -> None:
    if answer["output_ids"][-1] == END:
        answer["output_ids"] = answer["output_ids"][:-1]
        answer["meta_info"]["completion_tokens"] -= 1


def _foreign(answer: dict[str, Any]) -> None:
    answer["output_ids"] = [i + 1000 if i < 60 else i for i in answer["output_ids"]]


def _no_ids(answer: dict[str, Any]) -> None:
    del answer["output_ids"]


def _wrong_prompt(answer: dict[str, Any]) -> None:
    answer["meta_info"]["prompt_tokens"] += 1


@pytest.mark.parametrize(
    "corrupt",
    [
        pytest.param(_strip, id="think ids stripped"),
        pytest.param(_prefix, id="prompt tail before the output"),
        pytest.param(_no_end, id="end id missing"),
        pytest.param(_foreign, id="ids outside the vocabulary"),
        pytest.param(_no_ids, id="no output_ids"),
        pytest.param(_wrong_prompt, id="another prompt length"),
    ],
)
async def test_a_server_that_changes_ids_is_refused(corrupt: Callable[[dict[str, Any]], None]) -> None:
    """Each corruption is seen before any row is sent, and the evidence is in the error."""
    async with scripted_server() as server:
        _changed(corrupt)(server)
        with pytest.raises(UnfaithfulError, match="FAIL generate"):
            await _ensure(server)


@pytest.mark.parametrize(
    "meta",
    [
        pytest.param({"finish_reason": {"type": "abort", "message": "Abort in waiting queue"}}, id="aborted"),
        pytest.param({}, id="no ids"),
    ],
)
async def test_a_passing_fault_is_no_evidence(meta: dict[str, Any]) -> None:
    """Three probe requests in a row come back empty, then all is right: asked again, nothing is concluded."""
    left = [1, 2, 3]

    def empty(answer: dict[str, Any]) -> None:
        if left:
            left.pop()
            answer["output_ids"] = []
            answer["meta_info"] |= {"completion_tokens": 0} | meta

    async with scripted_server() as server:
        _changed(empty)(server)
        report = await _ensure(server)
    assert (report.probe.verdict, left) == (FAITHFUL, [])


async def test_a_server_that_looks_at_the_cap_first_is_faithful() -> None:
    """SGLang 0.5.9 and before: an end on the last allowed id is `length`. That is no corruption."""
    async with scripted_server() as server:
        right = server.reply

        def reply(body: dict[str, Any], **changes: Any) -> dict[str, Any]:
            answer, cap = right(body, **changes), body["sampling_params"]["max_new_tokens"]
            if len(answer["output_ids"]) >= cap:
                answer["meta_info"]["finish_reason"] = {"type": "length", "length": cap}
            return answer

        server.reply = reply  # type: ignore[method-assign]
        report = await _ensure(server)
    assert report.probe.verdict == FAITHFUL


async def test_a_model_that_does_not_close_is_unknown_not_unfaithful() -> None:
    """The cap cuts the answer: nothing is proved against the server, and a note says so."""

    def endless(answer: dict[str, Any]) -> None:
        if len(answer["output_ids"]) > 1:
            answer["output_ids"] = answer["output_ids"][:1]
            answer["meta_info"] |= {"finish_reason": {"type": "length", "length": 1}, "completion_tokens": 1}

    async with scripted_server() as server:
        _changed(endless)(server)
        report = await _ensure(server)
    assert report.probe.verdict == UNKNOWN
    assert "did not close" in " ".join(report.warnings)


@pytest.mark.parametrize(
    ("info", "word"),
    [
        pytest.param({"reasoning_parser": "qwen3"}, "--reasoning-parser qwen3 is on", id="parser on"),
        pytest.param({"version": "0.5.3"}, "0.5.3", id="a version that corrupts ids"),
        pytest.param({"allow_auto_truncate": True}, "--allow-auto-truncate", id="auto truncation"),
        pytest.param({"router_manager": True}, "gateway", id="gateway"),
    ],
)
async def test_policy_refuses_with_the_reason(info: dict[str, Any], word: str) -> None:
    """A parser, a bad version or a flag stops the run; the parser's error shows evidence and command."""
    async with scripted_server() as server:
        server.info |= info | {
            "launch_command": "--model-path /m --reasoning-parser qwen3 --api-key sk-secret"
        }
        with pytest.raises(UnfaithfulError, match=word) as caught:
            await _ensure(server)
        told = str(caught.value)
    assert "sk-secret" not in told
    if "reasoning_parser" in info:
        assert "chat_content" in told
        assert told.rstrip().endswith("--model-path /m --api-key '***'")


@pytest.mark.parametrize("parser", [None, "qwen3"], ids=["as wanted", "with a parser on"])
@pytest.mark.parametrize("mode", ["prefill", "decode"])
async def test_half_a_server_is_asked_nothing(mode: str, parser: str | None) -> None:
    """It would wait for its other half for ever: refused by name, in a run and by a probe alone."""
    async with scripted_server() as server:
        server.info |= {"disaggregation_mode": mode, "reasoning_parser": parser}
        with pytest.raises(UnfaithfulError, match=f"--disaggregation-mode is {mode}"):
            await _ensure(server)
        async with ServerClient(server.url, Access()) as client:
            with pytest.raises(SurroundingsError, match=f"--disaggregation-mode is {mode}"):
                await probe_server(client, settings(server.url).plan, await client.info())
        assert server.seen == []


async def test_a_wrong_key_is_a_persons_matter() -> None:
    """401 is told at once, not retried."""
    async with scripted_server() as server:

        async def deny(request: web.Request) -> web.Response:
            return web.json_response({"error": "Unauthorized"}, status=401)

        server._info = deny  # type: ignore[method-assign]
        await server.stop()
        await server.start_again()
        with pytest.raises(SurroundingsError, match="asks for an API key and none is set"):
            await _ensure(server)


class _Joins:
    """A listener that waits for a server to be admitted."""

    def __init__(self, joined: asyncio.Event) -> None:
        self.joined = joined

    def fill(self) -> None:
        """Nothing to send."""

    def on_alive(self, server: Server) -> None:
        """Nothing in doubt."""

    def on_down(self, server: Server) -> None:
        """Nothing in flight."""

    def on_admitted(self, server: Server) -> None:
        """Tell the test."""
        self.joined.set()


async def test_a_job_begins_with_the_servers_that_are_ready() -> None:
    """One server loads for long: the job begins with the other, and the late one joins."""
    async with scripted_server() as ready, scripted_server() as late:
        late.health = 503
        patience = attrs.evolve(QUICK, join_seconds=0.2)
        async with Fleet(settings(ready.url, late.url, patience=patience)) as fleet:
            (report,) = await fleet.ensure()
            assert report.url == ready.url
            late.health = 200
            joined = asyncio.Event()
            fleet.listener = _Joins(joined)
            async with asyncio.timeout(60):
                await joined.wait()
            assert len(fleet.open()) == 2


async def test_one_unfaithful_server_stops_the_job() -> None:
    """A fleet with one server that changes ids does not begin."""
    async with scripted_server() as good, scripted_server() as bad:
        _changed(_strip)(bad)
        async with Fleet(settings(good.url, bad.url)) as fleet:
            with pytest.raises(OperatorError, match=bad.url):
                await fleet.ensure()


@pytest.mark.parametrize("named", ["/models/tiny", "/models/other"])
async def test_another_model_is_refused(named: str) -> None:
    """Another tokenizer name alone is a note; with another tokenisation of the prompt it is refused."""
    async with scripted_server() as server:
        server.info["tokenizer_path"] = "/models/other"
        plan = attrs.evolve(settings(server.url).plan, tokenizer=named)
        (report,) = await ensure_servers(attrs.evolve(settings(server.url), plan=plan))
        assert bool(report.warnings) is (named == "/models/tiny")
        server.text_ids = [1, 2, 3, 4, 5]
        if named == "/models/tiny":
            with pytest.raises(UnfaithfulError, match="serves another model: /models/other"):
                await ensure_servers(attrs.evolve(settings(server.url), plan=plan))


@pytest.mark.parametrize("permuted", [False, True], ids=["other special tokens", "permuted"])
async def test_another_vocabulary_under_the_same_name_is_refused(permuted: bool) -> None:
    """It tokenises otherwise, and ours is less likely to it than blind luck: the same name does not help."""
    async with scripted_server() as server:
        server.text_ids = [1, 2, 3, 4, 5]
        server.scale = 3.0 if permuted else 1.0
        plan = attrs.evolve(settings(server.url).plan, tokenizer="/models/tiny")
        asking = ensure_servers(attrs.evolve(settings(server.url), plan=plan))
        if permuted:
            with pytest.raises(UnfaithfulError, match="less likely than ids drawn blindly"):
                await asking
        else:
            await asking
