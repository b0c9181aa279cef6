"""What servers say of themselves, read once and redacted: `ServerInfo`, `Loads` (pure).

Shapes follow SGLang 0.5.23 and tolerate 0.4.6 to 0.5.21 (every key is optional there). Nothing secret
survives reading: `api_key`, `admin_api_key` and what follows such a flag in `launch_command` go here.
"""

from collections.abc import Mapping
from typing import Any, Final

import attrs

from tasks.job.redaction import redact
from tasks.rows.lengths import LengthLimits

FLAGS_THAT_MATTER: Final = (
    "allow_auto_truncate",
    "disable_radix_cache",
    "disaggregation_mode",
    "dp_size",
    "dtype",
    "enable_deterministic_inference",
    "enable_strict_thinking",
    "json_model_override_args",
    "kv_cache_dtype",
    "lora_paths",
    "max_queued_requests",
    "nnodes",
    "preferred_sampling_params",
    "quantization",
    "skip_tokenizer_init",
    "speculative_accept_threshold_acc",
    "speculative_accept_threshold_single",
    "speculative_algorithm",
    "tp_size",
    "watermark_default_enabled",
    "watermark_enforce_all",
)
"""Server arguments that can change or explain token data; top-level keys of `/server_info`."""


@attrs.frozen(slots=True)
class ServerInfo:
    """One server as it describes itself, without its secrets.

    Args:
        url: base URL.
        version: SGLang's version, "" if it does not tell.
        model_path: what it loaded.
        tokenizer_path: the tokenizer's name or folder.
        reasoning_parser: name of the parser, None when off.
        tool_call_parser: name of the parser, None when off.
        context_length: ids of prompt + output that fit, None if unknown.
        max_req_input_len: exclusive bound of a prompt's length in ids, None if unknown.
        max_total_num_tokens: size of the KV pool in ids, None if unknown.
        max_running_requests: rows it decodes at once over all its data-parallel ranks, None if unknown.
        weight_version: name of the weights, "" if it does not tell.
        flags: server arguments that matter for token data.
        launch_command: its own argv, unquoted and redacted.
        gateway: it is a router in front of servers, not a server.
        workers: the servers behind a gateway.
    """

    url: str
    version: str = ""
    model_path: str = ""
    tokenizer_path: str = ""
    reasoning_parser: str | None = None
    tool_call_parser: str | None = None
    context_length: int | None = None
    max_req_input_len: int | None = None
    max_total_num_tokens: int | None = None
    max_running_requests: int | None = None
    weight_version: str = ""
    flags: Mapping[str, Any] = attrs.field(factory=dict)
    launch_command: str = ""
    gateway: bool = False
    workers: tuple[str, ...] = ()

    @property
    def lengths(self) -> LengthLimits:
        """The lengths that it accepts."""
        return LengthLimits(self.context_length, self.max_req_input_len, self.max_total_num_tokens)

    def tells_less(self, before: "ServerInfo") -> bool:
        """Whether it lacks what it told before: one of its endpoints failed, which changes no model."""
        names = ("version", "model_path", "weight_version", "context_length", "max_total_num_tokens")
        return any(getattr(before, name) and not getattr(self, name) for name in names)

    def describe(self) -> dict[str, Any]:
        """Return it as JSON-able data; the first four keys are those of the `probe` verb."""
        return {
            "version": self.version,
            "model_path": self.model_path,
            "reasoning_parser": self.reasoning_parser,
            "context_length": self.context_length,
            "tokenizer_path": self.tokenizer_path,
            "tool_call_parser": self.tool_call_parser,
            "max_req_input_len": self.max_req_input_len,
            "max_total_num_tokens": self.max_total_num_tokens,
            "max_running_requests": self.max_running_requests,
            "weight_version": self.weight_version,
            "flags": dict(self.flags),
            "launch_command": self.launch_command,
        }


def _text(*values: Any) -> str:
    return redact(next((v for v in values if isinstance(v, str) and v), ""))


def _redacted(value: Any) -> Any:
    if isinstance(value, list):
        return [_redacted(item) for item in value]
    if isinstance(value, dict):
        return {key: _redacted(item) for key, item in value.items()}
    return redact(value) if isinstance(value, str) else value


def _count(*values: Any) -> int | None:
    return next((v for v in values if isinstance(v, int) and not isinstance(v, bool) and v > 0), None)


def _models_context(models: Mapping[str, Any]) -> int | None:
    data = models.get("data")
    first = data[0] if isinstance(data, list) and data and isinstance(data[0], dict) else {}
    return _count(first.get("max_model_len"))


def _running_slots(server: Mapping[str, Any]) -> int | None:
    states = server.get("internal_states")
    ranks = [s for s in states if isinstance(s, dict)] if isinstance(states, list) else []
    per_rank = [_count(s.get("effective_max_running_requests_per_dp")) for s in ranks]
    known = [slots for slots in per_rank if slots is not None]
    return sum(known) if known else _count(server.get("max_running_requests"))


def read_info(
    url: str, server: Mapping[str, Any], model: Mapping[str, Any], models: Mapping[str, Any]
) -> ServerInfo:
    """Return what three introspection bodies say together; an empty mapping stands for a missing one.

    Args:
        url: base URL.
        server: body of `/server_info` (or `/get_server_info`).
        model: body of `/model_info` (or `/get_model_info`).
        models: body of `/v1/models`.
    """
    gateway = "router_manager" in server or (bool(server) and "model_path" not in server)
    flags = {
        name: _redacted(server[name])
        for name in FLAGS_THAT_MATTER
        if name in server
        and (server[name] is None or isinstance(server[name], bool | int | float | str | list))
    }
    flags.setdefault("preferred_sampling_params", _redacted(model.get("preferred_sampling_params")))
    return ServerInfo(
        url=url,
        version=_text(server.get("version")),
        model_path=_text(model.get("model_path"), server.get("model_path")),
        tokenizer_path=_text(model.get("tokenizer_path"), server.get("tokenizer_path")),
        reasoning_parser=_text(server.get("reasoning_parser"), model.get("reasoning_parser")) or None,
        tool_call_parser=_text(server.get("tool_call_parser"), model.get("tool_call_parser")) or None,
        context_length=_models_context(models) or _count(server.get("context_length")),
        max_req_input_len=_count(server.get("max_req_input_len")),
        max_total_num_tokens=_count(server.get("max_total_num_tokens")),
        max_running_requests=_running_slots(server),
        weight_version=_text(model.get("weight_version"), server.get("weight_version")),
        flags=flags,
        launch_command=_text(server.get("launch_command")),
        gateway=gateway,
    )


@attrs.frozen(slots=True)
class Loads:
    """How busy a server is: a snapshot over all its data-parallel ranks.

    Args:
        running: rows being decoded.
        waiting: rows in its queue.
        token_usage: share of the KV pool in use, the fullest rank's, in [0, 1].
        max_running: rows it can decode at once, None if unknown.
        throughput: generated ids per second.
        retracted: rows that were pushed back for want of memory.
        stamp: the ranks' own snapshot times; equal ones while rows run mean that the scheduler stands still.
    """

    running: int
    waiting: int
    token_usage: float = 0.0
    max_running: int | None = None
    throughput: float = 0.0
    retracted: int = 0
    stamp: tuple[float, ...] = ()


def read_loads(body: Any) -> Loads | None:
    """Read `/v1/loads` (0.5.9+) or `/get_load` (before 0.5.21); None when it is neither."""
    ranks: Any = body.get("loads") if isinstance(body, dict) else body
    if not isinstance(ranks, list) or not all(isinstance(rank, dict) for rank in ranks):
        return None
    if not ranks:
        return None
    waiting = sum(_number(rank, "num_waiting_reqs") for rank in ranks)
    running = sum(
        _number(rank, "num_running_reqs")
        if "num_running_reqs" in rank
        else max(0, _number(rank, "num_reqs") - _number(rank, "num_waiting_reqs"))
        for rank in ranks
    )
    slots = [_count(rank.get("max_running_requests")) for rank in ranks]
    return Loads(
        running=int(running),
        waiting=int(waiting),
        token_usage=max(_number(rank, "token_usage") for rank in ranks),
        max_running=sum(s for s in slots if s) or None,
        throughput=sum(_number(rank, "gen_throughput") for rank in ranks),
        retracted=int(sum(_number(_queues(rank), "retracted") for rank in ranks)),
        stamp=tuple(_number(rank, "timestamp") for rank in ranks),
    )


def _queues(rank: Mapping[str, Any]) -> Mapping[str, Any]:
    queues = rank.get("queues")
    return queues if isinstance(queues, dict) else {}


def _number(values: Mapping[str, Any], key: str) -> float:
    value = values.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return 0.0
    return float(value) if abs(value) < 2**63 else 0.0  # NaN and infinity are not below it


def listed_workers(body: Any) -> tuple[str, ...]:
    """Return the server URLs behind a gateway, from its `GET /workers`."""
    workers = body.get("workers") if isinstance(body, dict) else body
    if not isinstance(workers, list):
        return ()
    return tuple(w["url"] for w in workers if isinstance(w, dict) and isinstance(w.get("url"), str))
