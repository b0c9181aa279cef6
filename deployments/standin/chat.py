"""POST /v1/chat/completions: the template, sampling defaults of the model, and the parsers on the text."""

import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import jinja2
import orjson
from aiohttp import web

from deployments.standin.engine import QueueFullError
from deployments.standin.errors import bad_value, json_response, queue_full
from deployments.standin.generation import Generation
from deployments.standin.intake import check_length, read_body
from deployments.standin.parameters import check_ranges, choice_of, effective_limit, stops_of
from deployments.standin.reasoning import OPENER, split_calls, split_reasoning
from deployments.standin.server import Server
from deployments.standin.stopping import shown_text

# Fields that the chat API and sampling_params share; generation_config.json fills the first group.
_DEFAULTED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_SHARED = (
    *_DEFAULTED,
    "stop",
    "stop_token_ids",
    "frequency_penalty",
    "presence_penalty",
    "min_tokens",
    "ignore_eos",
    "skip_special_tokens",
    "no_stop_trim",
    "logit_bias",
)


class Chat:
    """The handler."""

    def __init__(self, server: Server) -> None:
        """Bind to a server."""
        self._server = server

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """One chat completion."""
        body, server = read_body(await request.read()), self._server
        generation, opened = self._generation(body)
        try:
            server.submit([generation])
        except QueueFullError:
            raise queue_full() from None
        try:
            if body.get("stream"):
                return await self._stream(request, generation, body, opened)
            async for _ in _moves(generation):
                pass
            return json_response(self._completion(generation, body, opened))
        finally:
            server.forget([generation])

    def _generation(self, body: dict[str, Any]) -> tuple[Generation, bool]:
        """(generation, whether the prompt ends with the opener of reasoning)."""
        server = self._server
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise bad_value("Messages cannot be empty.")
        try:
            text = server.template.text(
                messages, body.get("tools"), **(body.get("chat_template_kwargs") or {})
            )
        except jinja2.TemplateError as error:
            raise bad_value(f"Chat template error: {error}") from error
        prompt = server.template.encode(text)
        params = {name: server.defaults[name] for name in _DEFAULTED if name in server.defaults}
        params |= {name: body[name] for name in _SHARED if body.get(name) is not None}
        params["max_new_tokens"] = body.get("max_completion_tokens") or body.get("max_tokens")
        params["min_new_tokens"] = params.pop("min_tokens", 0)
        params["sampling_seed"] = body.get("seed")
        check_length(len(prompt), server.frame)
        limit = effective_limit(params, len(prompt), server.frame)
        check_ranges(params, server.frame.vocabulary)
        stops = stops_of(params, limit, server.frame)
        opened = text.endswith(OPENER)
        generation = Generation(
            uuid.uuid4().hex,
            prompt,
            choice_of(params, server.frame),
            stops,
            closer=server.frame.closer if opened else None,
            streams=bool(body.get("stream")),
        )
        return generation, opened

    def _message(self, generation: Generation, body: dict[str, Any], opened: bool) -> dict[str, Any]:
        """The assistant message of a snapshot: split only by the parsers that are on."""
        arguments = self._server.arguments
        content = shown_text(generation, self._server.tokenizer)
        reasoning: str | None = None
        calls: list[dict[str, Any]] = []
        if arguments.reasoning_parser and body.get("separate_reasoning", True) and opened:
            reasoning, content = split_reasoning(content)
        if arguments.tool_call_parser and body.get("tools"):
            content, calls = split_calls(content)
        message = {"role": "assistant", "content": content, "reasoning_content": reasoning or None}
        return message | ({"tool_calls": calls} if calls else {})

    def _completion(self, generation: Generation, body: dict[str, Any], opened: bool) -> dict[str, Any]:
        message, finish = self._message(generation, body, opened), generation.finish or {}
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": _reason(message, finish),
            "matched_stop": finish.get("matched"),
        }
        if body.get("return_token_ids"):
            choice |= {"prompt_token_ids": generation.prompt, "response_token_ids": generation.output}
        return {
            "id": generation.rid,
            "object": "chat.completion",
            "created": int(time.time()),
            "model": body.get("model") or self._server.arguments.served_model_name,
            "choices": [choice],
            "usage": _usage(generation),
            "metadata": {"weight_version": self._server.weight_version},
        }

    async def _stream(
        self, request: web.Request, generation: Generation, body: dict[str, Any], opened: bool
    ) -> web.StreamResponse:
        """Deltas of reasoning and content as server-sent events."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        head = {
            "id": generation.rid,
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": body.get("model") or self._server.arguments.served_model_name,
        }
        sent = {"reasoning_content": "", "content": ""}
        delta: dict[str, Any] = {"role": "assistant", "content": ""}
        async for now in _moves(generation):
            message = self._message(now, body, opened)
            for name, before in sent.items():
                text = message[name] or ""
                if text.startswith(before) and len(text) > len(before):
                    delta[name], sent[name] = text[len(before) :], text
            reason = None if now.finish is None else _reason(message, now.finish)
            if reason == "tool_calls":
                delta["tool_calls"] = message["tool_calls"]
            choice = {
                "index": 0,
                "delta": delta,
                "logprobs": None,
                "finish_reason": reason,
                "matched_stop": (now.finish or {}).get("matched"),
            }
            await response.write(b"data: " + orjson.dumps({**head, "choices": [choice]}) + b"\n\n")
            delta = {}
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


async def _moves(generation: Generation) -> AsyncIterator[Generation]:
    """Snapshots, each time that the generation moved, the finished one last."""
    while True:
        await generation.changed.wait()
        generation.changed.clear()
        now = generation.snapshot()
        yield now
        if now.finish is not None:
            return


def _reason(message: dict[str, Any], finish: dict[str, Any]) -> str:
    return "tool_calls" if "tool_calls" in message and finish["type"] == "stop" else str(finish["type"])


def _usage(generation: Generation) -> dict[str, Any]:
    prompt, output, reasoning = len(generation.prompt), len(generation.output), generation.reasoning
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": None,
        "reasoning_tokens": reasoning,
        "completion_tokens_details": {"reasoning_tokens": reasoning} if reasoning else None,
    }
