"""The command line: SGLang's flags as far as the stand-in acts on them, the others accepted and kept."""

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MODEL = Path(__file__).resolve().parent / "model"
NOTICE = (
    "rawseq stand-in: a tiny model behind SGLang's protocol, for trying, tests and benchmarks. Not for data."
)


@dataclass(frozen=True, slots=True)
class Arguments:
    """The resolved flags; names as SGLang's /server_info reports them."""

    model_path: str
    served_model_name: str
    host: str
    port: int
    reasoning_parser: str | None
    tool_call_parser: str | None
    max_running_requests: int | None
    max_queued_requests: int | None
    context_length: int | None
    max_total_tokens: int | None
    api_key: str | None
    admin_api_key: str | None
    enable_metrics: bool
    enable_deterministic_inference: bool
    skip_tokenizer_init: bool
    random_seed: int
    faults: tuple[str, ...]
    launch_command: str
    others: dict[str, Any] = field(default_factory=dict)  # flags that change nothing here


# (flag, how argparse takes it): the flags that change something here.
_FLAGS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("--served-model-name", {"help": "name in /v1/models (default: the path)"}),
    ("--host", {"default": "127.0.0.1"}),
    ("--port", {"type": int, "default": 30000}),
    ("--reasoning-parser", {"help": "chat completions split reasoning from content; /generate stays raw"}),
    ("--tool-call-parser", {"help": "chat completions read tool calls out of the text"}),
    ("--max-running-requests", {"type": int, "help": "slots (default 32)"}),
    ("--max-queued-requests", {"type": int, "help": "waiting requests before 503 (default: no limit)"}),
    ("--context-length", {"type": int, "help": "positions (default: the model's)"}),
    ("--max-total-tokens", {"type": int, "help": "cache positions in all (default: slots x context)"}),
    ("--api-key", {}),
    ("--admin-api-key", {}),
    ("--enable-metrics", {"action": "store_true"}),
    (
        "--enable-deterministic-inference",
        {"action": "store_true", "help": "honour sampling_seed (default seed 42)"},
    ),
    ("--skip-tokenizer-init", {"action": "store_true", "help": "ids only, no text in replies"}),
    ("--random-seed", {"type": int, "help": "reported; repeats nothing by itself, as genuine"}),
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deployments.standin",
        description=NOTICE,
        allow_abbrev=False,
        epilog="Other SGLang flags are accepted and shown in /server_info.",
    )
    parser.add_argument(
        "--model-path",
        "--model",
        default=str(MODEL),
        help="folder of a Qwen3 model (default: the bundled one)",
    )
    for flag, options in _FLAGS:
        parser.add_argument(flag, **options)
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        dest="faults",
        metavar="NAME[=ARG][*TIMES]",
        help="misbehave on purpose; --fault list names them",
    )
    return parser


def parse(argv: Sequence[str]) -> Arguments:
    """Resolve a command line; exits as argparse does on a bad one."""
    known, rest = _parser().parse_known_args(argv)
    values = vars(known)
    if values["random_seed"] is None:
        values["random_seed"] = random.SystemRandom().randrange(2**30)
    values["served_model_name"] = values["served_model_name"] or values["model_path"]
    values["faults"] = tuple(values["faults"])
    return Arguments(**values, launch_command=" ".join(argv), others=_others(rest))


def _others(rest: Sequence[str]) -> dict[str, Any]:
    """Unknown flags by name: `--flag value`, `--flag=value`, or a switch."""
    found: dict[str, Any] = {}
    words = list(rest)
    while words:
        name, equals, value = words.pop(0).partition("=")
        if not name.startswith("--"):
            continue
        if not equals and words and not words[0].startswith("--"):
            value, equals = words.pop(0), "="
        found[name[2:].replace("-", "_")] = _typed(value) if equals else True
    return found


def _typed(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False, "null": None}.get(text.lower(), text)
