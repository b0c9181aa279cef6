"""What a server's version and flags mean for token data: refuse, warn, or nothing (pure).

Version facts were read in the wheels 0.4.6.post5 to 0.5.23 of SGLang; see each function.
"""

import os
import re
from functools import lru_cache
from typing import Any, Final

from tasks.job.spec import ServersSpec
from tasks.sglang.info import ServerInfo

REASONING_PARSER: Final = "--reasoning-parser"
TOOL_CALL_PARSER: Final = "--tool-call-parser"
STRICT_THINKING: Final = "--enable-strict-thinking"

Version = tuple[int, int, int, int]
"""major, minor, patch, and -1 for a release candidate, 0 for a release, n for post n."""

UNKNOWN: Final[Version] = (0, 0, 0, 0)
_VERSION: Final = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?(?:\.?(rc|a|b|post|dev)(\d+))?")


@lru_cache(maxsize=64)  # asked for every row
def parse_version(text: str) -> Version:
    """Return a comparable version; `UNKNOWN` for text that is none."""
    match = _VERSION.match(text)
    if match is None:
        return UNKNOWN
    major, minor, patch, kind, number = match.groups()
    step = 0 if kind is None else int(number) if kind == "post" else -1
    return int(major), int(minor), int(patch or 0), step


def knows_seed(version: str) -> bool:
    """Whether `sampling_params.sampling_seed` is known; before 0.5.3 an unknown key is a 500."""
    parsed = parse_version(version)
    return parsed == UNKNOWN or parsed >= (0, 5, 3, 0)


def knows_prompt_echo(version: str) -> bool:
    """Whether `return_prompt_token_ids` is known (0.5.15 on; ignored before)."""
    return parse_version(version) >= (0, 5, 15, 0)


def _version_refusal(info: ServerInfo) -> str | None:
    parsed, ids_only = parse_version(info.version), bool(info.flags.get("skip_tokenizer_init"))
    if parsed == UNKNOWN or ids_only:
        return None
    if parsed < (0, 5, 0, -1):
        return (
            f"SGLang {info.version} returns no output_ids without --skip-tokenizer-init: use 0.5.5 or later"
        )
    if (0, 5, 1, -1) <= parsed < (0, 5, 4, 3):
        return (
            f"SGLang {info.version} puts prompt ids before output_ids (0.5.1 to 0.5.4): use 0.5.5 or later, "
            "or --skip-tokenizer-init"
        )
    return None


def half_refusal(info: ServerInfo) -> str | None:
    """Return why half a server answers no request: prefill and decode are apart, and a router pairs them."""
    mode = info.flags.get("disaggregation_mode")
    if mode not in ("prefill", "decode"):
        return None
    return (
        f"--disaggregation-mode is {mode}: it waits for its other half, which only SGLang's router names "
        "to it, and rows may not go through a router: start servers that do both"
    )


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def unwanted(info: ServerInfo, servers: ServersSpec) -> tuple[str, ...]:
    """Return the flags that the job forbids and the server has on, as they stand in a command line."""
    found = []
    if info.reasoning_parser is not None and servers.reasoning_parser == "forbid":
        found.append(REASONING_PARSER)
    if info.tool_call_parser is not None and "tool_call_parser" in servers.also_remove:
        found.append(TOOL_CALL_PARSER)
    if info.flags.get("enable_strict_thinking") and "enable_strict_thinking" in servers.also_remove:
        found.append(STRICT_THINKING)
    return tuple(found)


def refusals(info: ServerInfo, sampling: dict[str, Any]) -> list[str]:
    """Return why this server may not make token data, one sentence each; empty when it may.

    Args:
        info: the server.
        sampling: what every request will carry in `sampling_params`.
    """
    flags, found = info.flags, []
    if info.gateway:
        behind = ", ".join(info.workers) or "those behind it"
        found.append(
            f"it is a gateway, which drops request fields silently: name the servers instead: {behind}"
        )
    found += [reason for reason in (_version_refusal(info), half_refusal(info)) if reason is not None]
    if flags.get("allow_auto_truncate"):
        found.append("--allow-auto-truncate cuts prompts silently: start it without")
    if flags.get("watermark_default_enabled") or flags.get("watermark_enforce_all"):
        found.append("its watermark changes sampling: start it without")
    for name in ("speculative_accept_threshold_single", "speculative_accept_threshold_acc"):
        threshold = _number(flags.get(name))
        if flags.get("speculative_algorithm") and threshold is not None and threshold < 1.0:
            found.append(
                f"{name} is {threshold}, below 1.0: speculative decoding then changes what is sampled"
            )
    if flags.get("enable_deterministic_inference") and sampling.get("min_p", 0) > 0:
        found.append(
            "min_p > 0 kills a server with --enable-deterministic-inference: set sampling.min_p to 0"
        )
    return found


def warnings(info: ServerInfo, tokenizer: str = "") -> list[str]:
    """Return what a person should know of this server, one sentence each.

    Args:
        info: the server.
        tokenizer: the job's tokenizer, a name or a folder; "" to compare nothing.
    """
    flags, found = info.flags, []
    if parse_version(info.version) == UNKNOWN:
        found.append("it does not tell its version, so nothing is known about its token handling")
    if flags.get("preferred_sampling_params"):
        found.append(
            "it has --preferred-sampling-params; every field is sent explicitly, so they have no effect"
        )
    if flags.get("enable_strict_thinking"):
        found.append("--enable-strict-thinking filters ids while thinking, for requests that ask for it")
    if flags.get("lora_paths"):
        found.append("it serves LoRA adapters; rows are made with the base model")
    for name in ("quantization", "json_model_override_args", "kv_cache_dtype"):
        if flags.get(name) not in (None, "", "auto", "{}"):
            found.append(f"{name} is {flags[name]!r}: tokens are those of the model as served so")
    if tokenizer and not same_model(tokenizer, info.tokenizer_path or info.model_path):
        told = info.tokenizer_path or info.model_path or "not told"
        found.append(f"its tokenizer is {told}, the job's is {tokenizer}")
    return found


def same_model(job: str, server: str) -> bool:
    """Whether two model names or folders plausibly mean the same model: equal paths or equal last parts."""
    if not server:
        return False
    if os.path.realpath(job) == os.path.realpath(server):
        return True
    return _last_part(job) == _last_part(server)


def _last_part(name: str) -> str:
    cached = re.search(r"models--[^/]*--([^/]+)/snapshots/", name + "/")
    return (cached.group(1) if cached else name.rstrip("/").rsplit("/", 1)[-1]).lower()
