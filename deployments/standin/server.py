"""The running server: everything that the routes share."""

import asyncio
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from deployments.standin.arguments import Arguments
from deployments.standin.counters import Counters
from deployments.standin.engine import Engine, Limits
from deployments.standin.faults import Switches
from deployments.standin.generation import Generation
from deployments.standin.network import ROWS, Network
from deployments.standin.parameters import Frame
from deployments.standin.reasoning import CLOSER
from deployments.standin.sampling import Choice, Row, sample
from deployments.standin.stepper import Stepper
from deployments.standin.template import ChatTemplate
from deployments.standin.weights import load

VERSION = "0.5.23"  # the SGLang release whose protocol is spoken
CRASH_SECONDS = 5.0  # a genuine server dumps for this long before it dies, accepting and answering nothing


def _json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return content


class Server:
    """Model, engine, switches and status of one process."""

    def __init__(self, arguments: Arguments, loop: asyncio.AbstractEventLoop) -> None:
        """Load the model; the engine is not started yet."""
        folder = Path(arguments.model_path)
        self.arguments, self.loop = arguments, loop
        self.config, self.defaults = _json(folder / "config.json"), _json(folder / "generation_config.json")
        self.template = ChatTemplate(folder)
        self.tokenizer = self.template.tokenizer
        self.counters, self.switches = Counters(), Switches(arguments.faults)
        weights = load(folder, float(self.switches.value("other_weights") or 0))
        self.context = arguments.context_length or weights.shape.context
        running = arguments.max_running_requests or ROWS
        self.pool = arguments.max_total_tokens or running * self.context
        network = Network(weights, -(-running // ROWS), self.context)
        limits = Limits(running, arguments.max_queued_requests, self.pool)
        self.engine = Engine(Stepper(network), self.tokenizer, limits, self.counters, self._deliver)
        self.in_flight: dict[str, Generation] = {}
        self.started = time.time()
        self.starting = True  # until the warm-up is over
        self.draining = self.unhealthy = self.deaf = False
        self.frame = self._frame(folder, weights.shape.vocabulary)

    def _frame(self, folder: Path, vocabulary: int) -> Frame:
        ends: set[int] = set()
        for found in (self.config.get("eos_token_id"), self.defaults.get("eos_token_id")):
            ends |= set(found) if isinstance(found, list) else set() if found is None else {found}
        eos = _json(folder / "tokenizer_config.json").get("eos_token")
        if isinstance(eos, str):
            ends |= {token for token in [self.tokenizer.token_to_id(eos)] if token is not None}
        return Frame(
            vocabulary,
            frozenset(ends),
            self.arguments.enable_deterministic_inference,
            self.context,
            min(self.context, self.pool) - 1,
            self.tokenizer.token_to_id(CLOSER) if self.arguments.reasoning_parser else None,
            os.environ.get("SGLANG_RETURN_ORIGINAL_LOGPROB", "").lower() in ("1", "true"),
        )

    @property
    def weight_version(self) -> str:
        """Version of the weights, as the fault may have it."""
        return self.switches.value("weight_version") or "default"

    @property
    def model_name(self) -> str:
        """Path of the model, as the fault may have it."""
        return self.switches.value("wrong_model") or self.arguments.model_path

    @property
    def told_slots(self) -> int:
        """Rows that it says it runs at once, as the fault may have it."""
        return int(self.switches.value("told_slots") or self.engine.limits.running)

    def warm_up(self) -> None:
        """Run each kind of step once, so that the first request does not pay for it."""
        network = self.engine.stepper.network
        network.prefill(0, np.zeros(ROWS, np.intp), 0)
        positions = np.zeros(ROWS, np.intp)
        hidden = network.decode(0, positions, positions)
        row = Row(0, Choice(top_p=0.9), [0], [])
        sample(network.logits(hidden), [row])

    def apply_switches(self) -> None:
        """Let the engine and the middleware know of the switches that they act on."""
        self.deaf = self.switches.value("deaf") is not None
        self.engine.clock_ahead = float(self.switches.value("clock_jump") or 0)
        self.engine.freeze(self.switches.value("hang") is not None)

    def submit(self, generations: list[Generation]) -> None:
        """Send generations to the engine; raises QueueFullError."""
        cap = self.switches.take("cap_silently", self.counters)
        if cap is not None:
            for generation in generations:
                stops = generation.stops
                generation.stops = replace(stops, limit=min(stops.limit, int(cap)))
        self.engine.submit(generations)
        self.in_flight |= {generation.rid: generation for generation in generations}

    def forget(self, generations: list[Generation]) -> None:
        """Drop generations whose request is over, aborting what still runs (the client left)."""
        left = {g.rid for g in generations if g.finish is None}
        if left:
            self.engine.abort(lambda rid: rid.startswith(tuple(left)))  # by prefix, as genuine
        for generation in generations:
            self.in_flight.pop(generation.rid, None)

    def poisoned(self, generations: list[Generation]) -> bool:
        """Whether one would kill a genuine server.

        An empty prompt does, an id that is not in the vocabulary, and a logprob_start_len below -1.
        """
        return any(
            not g.prompt
            or min(g.prompt) < 0
            or max(g.prompt) >= self.frame.vocabulary
            or (g.wish is not None and g.wish.start < 0)
            for g in generations
        )

    def crash(self, seconds: float | None = None) -> None:
        """Die: accept connections without an answer for `seconds`, then end without a word."""
        if seconds is None:
            dumps = os.environ.get("SGLANG_CUDA_COREDUMP_BEFORE_CRASH", "1") != "0"
            seconds = CRASH_SECONDS if dumps else 0.0
        self.deaf = self.engine.frozen = True
        self.loop.call_later(seconds, os._exit, 1)

    def _deliver(self, changed: list[Generation]) -> None:
        self.loop.call_soon_threadsafe(_wake, changed)


def _wake(changed: list[Generation]) -> None:
    for generation in changed:
        generation.changed.set()
