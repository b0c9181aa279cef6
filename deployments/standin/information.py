"""What the server says about itself: model and server info, models, loads, metrics, health, readiness."""

import asyncio
import os
import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from deployments.standin.errors import ApiError, json_response
from deployments.standin.intake import INPUT_MARGIN
from deployments.standin.server import VERSION, Server

POLL_SECONDS = 0.05
# Flags that can change tokens, at the defaults that a genuine server reports.
DEFAULTS: dict[str, Any] = {
    "load_format": "auto",
    "trust_remote_code": False,
    "dtype": "auto",
    "quantization": None,
    "kv_cache_dtype": "auto",
    "device": "cpu",
    "tp_size": 1,
    "dp_size": 1,
    "pp_size": 1,
    "nnodes": 1,
    "node_rank": 0,
    "stream_interval": 1,
    "chunked_prefill_size": 4096,
    "max_prefill_tokens": 16384,
    "disable_radix_cache": True,
    "allow_auto_truncate": False,
    "preferred_sampling_params": None,
    "json_model_override_args": "{}",
    "enable_strict_thinking": False,
    "watermark_default_enabled": False,
    "watermark_enforce_all": False,
    "speculative_algorithm": None,
    "speculative_accept_threshold_single": 1.0,
    "speculative_accept_threshold_acc": 1.0,
    "lora_paths": None,
    "enable_lora": None,
    "tokenizer_worker_num": 1,
    "chat_template": None,
    "incremental_streaming_output": False,
    "sampling_defaults": "model",
    "watchdog_timeout": 300,
    "disaggregation_mode": "null",
    "kv_events": None,
    "mem_fraction_static": None,
    "schedule_policy": "fcfs",
    "schedule_conservativeness": 1.0,
    "tokenizer_mode": "auto",
}


def health_seconds() -> float:
    """Least time of a /health answer: 1 s as genuine; STANDIN_HEALTH_SECONDS sets another."""
    return float(os.environ.get("STANDIN_HEALTH_SECONDS", "1"))


class Information:
    """The handlers."""

    def __init__(self, server: Server) -> None:
        """Bind to a server."""
        self._server = server

    async def model_info(self, _: web.Request) -> web.Response:
        """GET /model_info."""
        server, a = self._server, self._server.arguments
        return json_response(
            {
                "model_path": server.model_name,
                "served_model_name": a.served_model_name,
                "tokenizer_path": server.model_name,
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": server.weight_version,
                "load_format": "auto",
                "reasoning_parser": a.reasoning_parser,
                "tool_call_parser": a.tool_call_parser,
                "disaggregation_mode": "null",
                "has_image_understanding": False,
                "has_audio_understanding": False,
                "model_type": server.config["model_type"],
                "architectures": server.config["architectures"],
            }
        )

    async def server_info(self, _: web.Request) -> web.Response:
        """GET /server_info: every flag, keys in clear as genuine; frontend tells a stand-in."""
        server, a = self._server, self._server.arguments
        flags = {k: v for k, v in asdict(a).items() if k not in ("faults", "others", "launch_command")}
        state = {
            "effective_max_running_requests_per_dp": server.told_slots,
            "last_gen_throughput": round(server.engine.throughput, 2),
            "memory_usage": {"weight": 0.005, "kvcache": 0.25, "token_capacity": server.pool},
        }
        return json_response(
            {
                **DEFAULTS,
                **flags,
                "model_path": server.model_name,
                "tokenizer_path": server.model_name,
                "weight_version": server.weight_version,
                **a.others,
                "launch_command": a.launch_command,
                "status": "ready",
                "max_total_num_tokens": server.pool,
                "max_req_input_len": server.frame.longest - INPUT_MARGIN,
                "startup_time": {},
                "internal_states": [state],
                "version": VERSION,
                "frontend": "standin",
            }
        )

    async def models(self, _: web.Request) -> web.Response:
        """GET /v1/models: the reliable context length."""
        server = self._server
        name = server.switches.value("wrong_model") or server.arguments.served_model_name
        entry = {
            "id": name,
            "object": "model",
            "created": int(server.started),
            "owned_by": "sglang",
            "root": name,
            "parent": None,
            "max_model_len": server.context,
        }
        return json_response({"object": "list", "data": [entry]})

    async def loads(self, _: web.Request) -> web.Response:
        """GET /v1/loads: a snapshot that answers even if the decoder stands still, with its age."""
        engine, seen = self._server.engine, self._server.engine.load()
        load = {
            "timestamp": seen.stamp,
            "dp_rank": 0,
            "num_running_reqs": seen.running,
            "num_waiting_reqs": seen.waiting,
            "num_waiting_uncached_tokens": 0,
            "num_used_tokens": seen.tokens,
            "num_total_tokens": seen.tokens,
            "num_active_tokens": seen.tokens,
            "num_prealloc_ready_tokens": 0,
            "max_total_num_tokens": self._server.pool,
            "max_running_requests": self._server.told_slots,
            "token_usage": round(seen.tokens / self._server.pool, 4),
            "gen_throughput": round(engine.throughput, 2) if seen.running else 0.0,
            "cache_hit_rate": 0.0,
            "utilization": 0.0,
            "queues": {"waiting": seen.waiting, "grammar": 0, "paused": 0, "retracted": 0},
        }
        return json_response(
            {
                "timestamp": datetime.now(UTC).isoformat(),
                "version": VERSION,
                "accelerator": None,
                "num_accelerators": 1,
                "loads": [load],
            }
        )

    async def metrics(self, _: web.Request) -> web.Response:
        """GET /metrics, with --enable-metrics."""
        server = self._server
        if not server.arguments.enable_metrics:
            raise ApiError(404, {"detail": "Not Found"})
        engine, counters = server.engine, server.counters
        values = {
            "num_running_reqs": len(engine.running()),
            "num_queue_reqs": engine.waiting(),
            "gen_throughput": round(engine.throughput, 2),
            "generation_tokens_total": counters.tokens,
            "num_aborted_requests_total": counters.generations_aborted,
            "num_retracted_reqs": 0,
            "num_requests_total": counters.generations_finished,
            "http_requests_active": len(server.in_flight),
        }
        label = f'{{model_name="{server.arguments.served_model_name}"}}'
        return web.Response(text="".join(f"sglang:{name}{label} {value}\n" for name, value in values.items()))

    async def ready(self, _: web.Request) -> web.Response:
        """GET /ready: flags only, at once."""
        server = self._server
        up = not (server.starting or server.draining or server.unhealthy or server.engine.paused)
        return web.Response(status=200 if up else 503)

    async def health(self, _: web.Request) -> web.Response:
        """GET /health: 503 while starting or draining; else waits for a sign of life, a second at least."""
        server = self._server
        if server.starting or server.draining:
            return web.Response(status=503)
        if os.environ.get("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "1") == "0":
            return web.Response()
        await asyncio.sleep(health_seconds())
        deadline = time.monotonic() + float(os.environ.get("SGLANG_HEALTH_CHECK_TIMEOUT", "20"))
        while server.engine.frozen or server.engine.paused:
            if time.monotonic() > deadline:
                server.unhealthy = True
                return web.Response(status=503)
            await asyncio.sleep(POLL_SECONDS)
        server.unhealthy = False
        return web.Response()
