"""A scripted SGLang server for tests: a real socket, right answers, and one hook for wrong ones."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from aiohttp import web

from tasks.fleet.ensure import FleetSettings
from tasks.job.spec import ServersSpec
from tasks.rows.records import Completion, Request
from tasks.sglang.fingerprint import asked_ids
from tasks.sglang.judge import ProbePlan
from tasks.sglang.settings import Patience

CLOSER, END, VOCAB = 90, 91, 100
PROMPT = np.array([1, 2, 3], np.int32)

Hook = Callable[[dict[str, Any], int], Awaitable[web.StreamResponse | None]]
"""(request body, how many generations came before) → another answer, or None for the right one."""


def right_ids(input_ids: list[int]) -> list[int]:
    """Return the output of the scripted model: a function of the prompt alone."""
    return [10 + sum(input_ids) % 50, CLOSER, 10 + len(input_ids) % 50, END]


class Scripted:
    """State of one scripted server; change `hook`, `info` or `health` at any time."""

    def __init__(self) -> None:
        self.hook: Hook | None = None
        self.info: dict[str, Any] = {
            "model_path": "/models/tiny",
            "tokenizer_path": "/models/tiny",
            "reasoning_parser": None,
            "tool_call_parser": None,
            "max_req_input_len": 500,
            "max_total_num_tokens": 4096,
            "api_key": "sk-secret",
            "launch_command": "--model-path /models/tiny --api-key sk-secret",
            "version": "0.5.23",
        }
        self.weights = "default"
        self.model = 0
        """Which weights it has, whatever it says: its log probabilities follow from it."""
        self.scale = 1.0
        """Nats that its least likely id has, in eights: above one its ids are those of another vocabulary."""
        self.health = 200
        self.health_gate: asyncio.Event | None = None
        """Where it is set, `/health` answers only when the event is."""
        self.info_gate: asyncio.Event | None = None
        """The same of `/server_info`."""
        self.info_asked = asyncio.Event()
        self.info_fails = 0
        """How many of its next answers to `/server_info` or `/model_info` are 503."""
        self.context = 512
        self.text_ids = PROMPT.tolist()
        self.slots: int | None = None
        """Rows that it says it runs at once; any more of them wait. None: it says that none ever waits."""
        self.waiting_seen: list[int] = []
        """How many rows waited, look by look."""
        self.told = 4
        """Rows that it says it could run at once."""
        self.tells_loads = True
        self.seen: list[dict[str, Any]] = []
        self.requests: list[web.Request] = []
        self.aborted: list[str] = []
        self.deaths = 0
        self.running = 0
        self.most_running = 0
        self.tries: Counter[tuple[int, ...]] = Counter()
        self.url = ""
        self._bouncing: asyncio.Task[None] | None = None
        self._site: web.TCPSite | None = None
        self._runner: web.AppRunner | None = None

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Generations that were rows, not probes."""
        return [body for body in self.seen if "rid" in body]

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """Answer one request, wrongly where the hook says so."""
        body = await request.json()
        before = len(self.rows)
        self.seen.append(body)
        self.requests.append(request)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if self.hook is not None and "rid" in body:
                answer = await self.hook(body, before)
                if answer is not None:
                    return answer
            return web.json_response(self.reply(body))
        finally:
            self.running -= 1

    def reply(self, body: dict[str, Any], **changes: Any) -> dict[str, Any]:
        """Return the right reply; `changes` go over its `meta_info`."""
        params, ids = body["sampling_params"], body.get("input_ids") or self.text_ids
        if params["max_new_tokens"] == 0:
            return {"output_ids": [], "meta_info": self._scores(ids, body["logprob_start_len"])}
        out = right_ids(ids)
        if bias := params.get("logit_bias"):
            out = [int(max(bias, key=bias.get))]
        out = out[: params["max_new_tokens"]]
        finish = (
            {"type": "stop", "matched": END} if out[-1] == END else {"type": "length", "length": len(out)}
        )
        meta = {
            "id": body.get("rid", "x"),
            "finish_reason": finish,
            "prompt_tokens": len(ids),
            "completion_tokens": len(out),
            "cached_tokens": 0,
            "weight_version": self.weights,
            "num_retractions": 0,
            "e2e_latency": 0.001,
        }
        reply = {"text": str(out), "output_ids": out, "meta_info": meta | changes}
        return reply | {"prompt_token_ids": ids} if body.get("return_prompt_token_ids") else reply

    def _scores(self, ids: list[int], start: int) -> dict[str, Any]:
        """Return the log probabilities of the ids behind `start`: a function of the weights and the place."""
        luck = np.random.default_rng(self.model).uniform(-8.0 * self.scale, 0.0, len(ids))
        entries = [[float(luck[at]), ids[at], None] for at in range(start, len(ids))]
        return {"input_token_logprobs": entries, "input_top_logprobs": [[entry] for entry in entries]}

    async def _health(self, request: web.Request) -> web.Response:
        if self.health_gate is not None:
            await self.health_gate.wait()
        return web.Response(status=self.health)

    async def _info(self, request: web.Request) -> web.Response:
        if self.info_gate is not None:
            self.info_asked.set()
            await self.info_gate.wait()
        if self.info_fails:
            self.info_fails -= 1
            return web.Response(status=503)
        state = {"effective_max_running_requests_per_dp": self.told}
        return web.json_response({"internal_states": [state]} | self.info | {"weight_version": self.weights})

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "tiny", "max_model_len": self.context}]})

    async def _loads(self, request: web.Request) -> web.Response:
        if not self.tells_loads:
            raise web.HTTPNotFound
        running = self.running if self.slots is None else min(self.slots, self.running)
        self.waiting_seen.append(self.running - running)
        rank = {
            "timestamp": time.time(),
            "dp_rank": 0,
            "num_running_reqs": running,
            "num_waiting_reqs": self.running - running,
            "max_running_requests": self.told,
            "token_usage": 0.1,
        }
        return web.json_response({"version": "0.5.23", "loads": [rank]})

    async def _abort(self, request: web.Request) -> web.Response:
        self.aborted.append((await request.json())["rid"])
        return web.Response()

    async def _chat(self, request: web.Request) -> web.Response:
        message = {"role": "assistant", "content": f"4 <{CLOSER}>"}
        return web.json_response({"choices": [{"message": message}]})

    async def start(self, port: int = 0) -> None:
        """Listen on a free loopback port, or on the one given."""
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/generate", self.generate)
        app.router.add_get("/health", self._health)
        app.router.add_get("/server_info", self._info)
        app.router.add_get("/model_info", self._info)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/loads", self._loads)
        app.router.add_post("/abort_request", self._abort)
        app.router.add_post("/v1/chat/completions", self._chat)
        self._runner = web.AppRunner(app, shutdown_timeout=0.0, handler_cancellation=True)
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, "127.0.0.1", port, reuse_address=True)
        await self._site.start()
        sock = self._site._server.sockets[0]  # type: ignore[union-attr]  # the port that was given
        self.url = f"http://127.0.0.1:{sock.getsockname()[1]}"

    async def stop(self) -> None:
        """Die: connections break, the port refuses."""
        if self._runner is not None:
            for connection in list(self._runner.server.connections if self._runner.server else []):
                if connection.transport is not None:
                    connection.transport.abort()
            await self._runner.cleanup()
            self._runner = None

    def bounce(self, model: int = 0) -> None:
        """Die as soon as may be, and come back a moment later; once for all that ask meanwhile."""
        if self._bouncing is None or self._bouncing.done():
            self.deaths += 1
            self._bouncing = asyncio.ensure_future(self._bounce(model))

    async def _bounce(self, model: int) -> None:
        await self.stop()
        await asyncio.sleep(0.3)  # long enough to be seen as away
        self.model = model
        await self.start_again()

    async def start_again(self) -> None:
        """Come back on the same port."""
        await self.start(int(self.url.rsplit(":", 1)[1]))


@asynccontextmanager
async def scripted_server() -> AsyncIterator[Scripted]:
    """Run one scripted server on a free loopback port."""
    server = Scripted()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


PLAN = ProbePlan(
    input_ids=PROMPT,
    closer_ids=(CLOSER,),
    end_ids=(END,),
    vocab_size=VOCAB,
    sampling={"temperature": 0.7, "top_p": 0.95, "top_k": 20, "min_p": 0.0, "repetition_penalty": 1.0},
    name_of=lambda i: f"<{i}>",
    decode=lambda ids: str(ids.tolist()),
    fingerprint_ids=asked_ids(PROMPT, np.arange(4, 60), VOCAB, frozenset({CLOSER, END})),
)

QUICK = Patience(
    poll_seconds=0.05,
    look_seconds=10.0,
    health_seconds=10.0,
    stale_seconds=3.0,
    lost_seconds=1.0,
    backoff_seconds=0.02,
    backoff_most_seconds=0.1,
    deadline_floor_seconds=2.0,
    busy_seconds=30.0,
    watchdog_seconds=0.25,
)
"""Short where a test waits for it to pass, long where a busy machine must not reach it."""


def settings(*urls: str, patience: Patience = QUICK, in_flight: int | None = 4, **spec: Any) -> FleetSettings:
    """Return the settings of a fleet that is tested."""
    spec = {"ready_timeout_seconds": 60.0, "info_timeout_seconds": 20.0} | spec
    return FleetSettings(
        servers=ServersSpec(urls=list(urls), **spec), plan=PLAN, in_flight=in_flight, patience=patience
    )


class ListLane:
    """A lane of given requests that keeps every completion, to see that none is lost and none doubled."""

    def __init__(self, requests: list[Request], attempts: dict[str, int] | None = None) -> None:
        self.requests = list(requests)
        self.planned = {request.row_id for request in requests}
        self.completions: list[Completion] = []
        self.failures: list[tuple[str, str, bool]] = []
        self.earlier = attempts or {}
        self.some = asyncio.Event()

    @property
    def done(self) -> bool:
        """Whether every planned row ended."""
        return {completion.row_id for completion in self.completions} == self.planned

    def take(self) -> Request | None:
        """Give the next request."""
        return self.requests.pop(0) if self.requests else None

    def finished(self, completion: Completion) -> None:
        """Keep a completion."""
        self.completions.append(completion)
        self.some.set()

    def attempt_failed(self, request: Request, outcome: str, alone: bool) -> None:
        """Keep a failed attempt."""
        self.failures.append((request.row_id, outcome, alone))

    def attempts(self, row_id: str) -> int:
        """Return what an earlier run counted."""
        return self.earlier.get(row_id, 0)

    def by_row(self) -> dict[str, Completion]:
        """Return completions by row, after checking that each row ended exactly once."""
        assert sorted(c.row_id for c in self.completions) == sorted(self.planned)
        return {completion.row_id: completion for completion in self.completions}


def requests(count: int, first: int = 0, **fields: Any) -> list[Request]:
    """Return `count` rows with different prompts."""
    return [
        Request(f"s:{i}#t0~s0", np.array([1, 2, i % 80], np.int32), 16, seed=i, **fields)
        for i in range(first, first + count)
    ]


def assert_right(lane: ListLane) -> None:
    """Every row once, with exactly the ids that the server makes of its prompt."""
    for completion in lane.by_row().values():
        assert completion.sent, completion.detail
        assert completion.output_ids.tolist() == right_ids(completion.input_ids.tolist())
