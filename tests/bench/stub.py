"""A server so cheap that the client is the cost: SGLang's shapes, encoded replies, slots, service times.

Not a stand-in: it knows no model. Which reply and which service time a row gets depends on its prompt alone,
so every client of a round meets the same load. It speaks HTTP/1.1 on a bare `asyncio.Protocol`.

Run: python -m tests.bench.stub --lengths fixed:2048 --service zero   (prints its URL, ends on SIGTERM)
"""

import argparse
import asyncio
import json
import signal
import time
import zlib
from collections import deque
from typing import Any, cast

import attrs
import numpy as np
import uvloop

from tasks.grammar.grammar import discover_grammar
from tasks.tokenizer.vocabulary import load_vocabulary
from tests.bench.load import KINDS, MODEL, Load, read_load, spread

IDLE_SECONDS = 5.0
"""SGLang closes idle connections after that time; a client that does not mind it loses requests."""


@attrs.frozen(slots=True)
class Reply:
    """One encoded answer: a body with holes for request id and prompt length; its service time in seconds.

    `chat` answers a chat completion, `chat_ids` one that asks for token ids as vLLM gives them.
    """

    head: bytes
    middle: bytes
    tail: bytes
    chat: bytes
    chat_ids: bytes
    seconds: float


def encode_replies(load: Load) -> tuple[Reply, ...]:
    """Return `KINDS` answers with the load's lengths and times; correct rows of the stand-in's grammar."""
    vocabulary = load_vocabulary(MODEL)
    grammar = discover_grammar(vocabulary)
    words = np.flatnonzero(grammar.symbols == 0).astype(np.int32)
    end, closer = min(grammar.end_ids), grammar.closer_ids[0]
    dice = np.random.default_rng(load.seed)
    replies = []
    for length, seconds in zip(spread(load.lengths), spread(load.service), strict=True):
        ids = dice.choice(words, max(4, round(length)))
        ids[ids.size // 2], ids[-1] = closer, end
        text = vocabulary.decode(ids)
        finish = f'"finish_reason":{{"type":"stop","matched":{end}}}'
        told = json.dumps(ids.tolist(), separators=(",", ":"))  # as SGLang's orjson writes it
        head = f'{{"text":{json.dumps(text)},"output_ids":{told},"meta_info":{{"id":"'
        middle = f'",{finish},"weight_version":"default","num_retractions":0,"cached_tokens":0,'
        middle += f'"completion_tokens":{ids.size},"e2e_latency":{seconds},"prompt_tokens":'
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        chat = {"id": "x", "object": "chat.completion", "created": 0, "model": "stub", "choices": [choice]}
        with_ids = [{**choice, "token_ids": ids.tolist()}]
        usage = {"prompt_tokens": load.prompt, "completion_tokens": ids.size}
        ids_chat = {
            **chat,
            "choices": with_ids,
            "prompt_token_ids": [int(ids[0])] * load.prompt,
            "usage": usage,
        }
        texts = (json.dumps(each, separators=(",", ":")).encode() for each in (chat, ids_chat))
        replies.append(Reply(head.encode(), middle.encode(), b"}}", *texts, seconds))
    order = np.random.default_rng(load.seed + 1).permutation(KINDS)
    return tuple(replies[i] for i in order)


class Engine:
    """`slots` rows at once, the others wait in line; counts what it was given and how busy it was."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.replies = encode_replies(load)
        self.running = 0
        self.waiting: deque[tuple[Connection, bytes, float]] = deque()
        self.connections = 0
        self.begin()

    def begin(self) -> None:
        """Count from now on: what was asked before a run, a probe say, is no part of it."""
        self.requests = self.most_running = self.most_waiting = 0
        self.busy_seconds = self.filled_busy = self.first = self.last_start = 0.0
        self._changed = time.monotonic()

    def submit(self, connection: "Connection", body: bytes, chat: bool) -> None:
        """Answer one request after its service time, when a slot is free."""
        self.requests += 1
        if b'"logit_bias"' in body:
            connection.send(200, forced(json.loads(body)))
            return
        reply = self.replies[kind_of(body)]
        if chat:
            answer = reply.chat_ids if b'"return_token_ids"' in body else reply.chat
        else:
            answer = fill(reply, body)
        seconds = reply.seconds
        if seconds == 0.0:
            connection.send(200, answer)
        elif self.running < self.load.slots:
            self._start(connection, answer, seconds)
        else:
            self.waiting.append((connection, answer, seconds))
            self.most_waiting = max(self.most_waiting, len(self.waiting))

    def _start(self, connection: "Connection", answer: bytes, seconds: float) -> None:
        now = self._count()
        self.first = self.first or now
        self.last_start, self.filled_busy = now, self.busy_seconds
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        asyncio.get_running_loop().call_later(seconds, self._end, connection, answer)

    def _count(self) -> float:
        """Add what was served since the last change to the busy slot time; return the time."""
        now = time.monotonic()
        self.busy_seconds += self.running * (now - self._changed)
        self._changed = now
        return now

    def _end(self, connection: "Connection", answer: bytes) -> None:
        self._count()
        self.running -= 1
        connection.send(200, answer)
        if self.waiting:
            self._start(*self.waiting.popleft())

    def counters(self) -> dict[str, Any]:
        """Return what was counted since the start."""
        return {
            "requests": self.requests,
            "connections": self.connections,
            "most_running": self.most_running,
            "most_waiting": self.most_waiting,
            "busy_seconds": self.busy_seconds,
            "filled_seconds": self.last_start - self.first,
            "filled_busy": self.filled_busy,
            "cpu_seconds": time.process_time(),
        }

    def information(self, path: str) -> dict[str, Any]:
        """Return what introspection says."""
        if path.startswith("/v1/loads"):
            rank = {
                "timestamp": time.time(),
                "dp_rank": 0,
                "num_running_reqs": self.running,
                "num_waiting_reqs": len(self.waiting),
                "max_running_requests": self.load.told or self.load.slots,
                "token_usage": 0.1,
            }
            return {"version": "0.5.23", "loads": [rank]}
        if path == "/v1/models":
            return {"object": "list", "data": [{"id": "stub", "max_model_len": 1 << 20}]}
        return {
            "model_path": MODEL.tokenizer,
            "tokenizer_path": MODEL.tokenizer,
            "reasoning_parser": None,
            "max_req_input_len": 1 << 20,
            "max_total_num_tokens": 1 << 24,
            "internal_states": [{"effective_max_running_requests_per_dp": self.load.told}],
            "weight_version": "default",
            "version": "0.5.23",
        }


def kind_of(body: bytes) -> int:
    """Return which reply a prompt gets: a hash of its ids (or of the whole body of a chat)."""
    start = body.find(b'"input_ids":[')
    prompt = body if start < 0 else body[start : body.find(b"]", start)]
    return zlib.crc32(prompt.replace(b" ", b"")) % KINDS


def fill(reply: Reply, body: bytes) -> bytes:
    """Return the reply's bytes with the request's id and the count of its prompt ids."""
    start = body.find(b'"rid":"')
    rid = b"x" if start < 0 else body[start + 7 : body.find(b'"', start + 7)]
    start = body.find(b'"input_ids":[')
    count = body[start : body.find(b"]", start)].count(b",") + 1
    return b"".join((reply.head, rid, reply.middle, str(count).encode(), reply.tail))


def forced(body: dict[str, Any]) -> bytes:
    """Return the answer to a probe that forces one id."""
    bias = body["sampling_params"]["logit_bias"]
    token = int(max(bias, key=bias.get))
    meta = {
        "id": body.get("rid", "x"),
        "finish_reason": {"type": "stop", "matched": token},
        "prompt_tokens": len(body["input_ids"]),
        "completion_tokens": 1,
        "weight_version": "default",
    }
    return json.dumps({"text": "", "output_ids": [token], "meta_info": meta}).encode()


class Connection(asyncio.Protocol):
    """One keep-alive connection, closed when it was idle for `IDLE_SECONDS`; requests are not pipelined."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._idle: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count it."""
        self._transport = cast(asyncio.Transport, transport)
        self._engine.connections += 1
        self._rest()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it; an answer that comes later goes nowhere."""
        self._transport = None
        if self._idle is not None:
            self._idle.cancel()

    def data_received(self, data: bytes) -> None:
        """Take a request when it is whole."""
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._buffer[:end])
        size = length_of(head)
        if len(self._buffer) < end + 4 + size:
            return
        body = bytes(self._buffer[end + 4 : end + 4 + size])
        self._buffer.clear()
        if self._idle is not None:
            self._idle.cancel()
        self._route(head.split(b" ", 2)[1].decode(), body)

    def _route(self, path: str, body: bytes) -> None:
        if path in ("/generate", "/v1/chat/completions"):
            self._engine.submit(self, body, chat=path != "/generate")
        elif path.startswith("/stub/"):
            if path == "/stub/begin":
                self._engine.begin()
            self.send(200, json.dumps(self._engine.counters()).encode())
        elif path in ("/health", "/abort_request"):
            self.send(200, b"{}")
        else:
            silent = "load" in path and self._engine.load.told == 0
            self.send(404 if silent else 200, json.dumps(self._engine.information(path)).encode())

    def send(self, status: int, body: bytes) -> None:
        """Write one answer."""
        if self._transport is None:
            return
        head = b"HTTP/1.1 %d OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self._transport.write(head % (status, len(body)) + body)
        self._rest()

    def _rest(self) -> None:
        assert self._transport is not None
        self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._transport.close)


def length_of(head: bytes) -> int:
    """Return the Content-Length of a request head, 0 when it has none."""
    lower = head.lower()
    start = lower.find(b"content-length:")
    return 0 if start < 0 else int(lower[start + 15 :].split(b"\r\n", 1)[0])


async def serve(load: Load) -> None:
    """Listen until SIGTERM; print the URL when it listens."""
    loop = asyncio.get_running_loop()
    engine = Engine(load)
    server = await loop.create_server(lambda: Connection(engine), "127.0.0.1", 0, backlog=4096)
    port = server.sockets[0].getsockname()[1]
    print(f"http://127.0.0.1:{port}", flush=True)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
    server.close()


def main() -> None:
    """Serve one load."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--load", default="{}", help="JSON of the load's fields")
    args = parser.parse_args()
    uvloop.run(serve(read_load(args.load)))


if __name__ == "__main__":
    main()
