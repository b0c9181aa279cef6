"""The embedded server for tests: rows with real prompts, its switches and counters."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import numpy as np

from deployments.standin.launch import ROOT, Standin, free_port, start_standin
from deployments.standin.template import ChatTemplate
from tasks.errors import SurroundingsError
from tasks.fleet.dispatch import Dispatch, DispatchStats
from tasks.fleet.fleet import Fleet
from tasks.job.spec import ServersSpec
from tasks.rows.records import Completion, Ids, Request
from tasks.sglang.judge import ProbePlan
from tasks.sglang.restart.process import find_server
from tasks.sglang.restart.stop import stop_server
from tasks.sglang.settings import FleetSettings, Patience
from tests.conftest import wait_for_url
from tests.support.scripted import QUICK, ListLane

MODEL = ROOT / "deployments" / "standin" / "model"
TEMPLATE = ChatTemplate(MODEL)
VOCAB = int(json.loads((MODEL / "config.json").read_text())["vocab_size"])
CLOSER = TEMPLATE.tokenizer.token_to_id("</think>")
END = TEMPLATE.tokenizer.token_to_id("<|im_end|>")
SAMPLING = {
    "temperature": 0.7,
    "top_p": 0.95,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}

COUNT = 24
"""Rows of one test of the fault tables."""

Right = dict[str, list[int]]
"""Row to output ids, as an undisturbed run gives them."""


def _name(token: int) -> str:
    return TEMPLATE.tokenizer.id_to_token(token) or str(token)


def _text(ids: Ids) -> str:
    return TEMPLATE.tokenizer.decode(ids.tolist(), skip_special_tokens=False)


def prompt(question: str) -> Ids:
    """Return the ids of one question as the model's template renders it."""
    return np.array(TEMPLATE.prompt([{"role": "user", "content": question}]), np.int32)


PLAN = ProbePlan(
    prompt("What is 2+2?"), (CLOSER,), (END,), VOCAB, SAMPLING, 256, _name, _text, tokenizer=str(MODEL)
)


def rows(count: int, first: int = 0, cap: int = 48) -> list[Request]:
    """Return `count` rows with different questions and seeds, each of at most `cap` output ids."""
    return [
        Request(f"q:{i}#t0~s0", prompt(f"What is {i}+{i % 7}?"), cap, seed=1000 + i)
        for i in range(first, first + count)
    ]


class FewLane(ListLane):
    """At most eight rows under way: the window itself would grow and take them all."""

    def take(self) -> Request | None:
        """Give the next request when fewer are under way."""
        under_way = len(self.planned) - len(self.requests) - len(self.completions)
        return super().take() if under_way < 8 else None


BRISK = attrs.evolve(
    QUICK,
    health_seconds=25.0,
    stale_seconds=4.0,
    lost_seconds=2.0,
    deadline_floor_seconds=6.0,
)
"""As `QUICK`, with room for a process of its own on a busy machine."""


def fleet_settings(
    *urls: str, patience: Patience = BRISK, api_key: str | None = None, **spec: Any
) -> FleetSettings:
    """Return the settings of a fleet over embedded servers."""
    spec = {"ready_timeout_seconds": 300.0, "info_timeout_seconds": 20.0} | spec
    return FleetSettings(
        ServersSpec(urls=list(urls), **spec), PLAN, api_key=api_key, in_flight=8, patience=patience
    )


async def switch(url: str, **faults: Any) -> None:
    """Switch faults on (an argument, True) or off (None)."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/standin/faults", json=faults) as answer,
    ):
        assert answer.status == 200, await answer.text()


async def counters(url: str) -> dict[str, Any]:
    """Return what the server counted since its start."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/standin/counters") as answer:
        return dict(await answer.json())


async def send(
    lane: ListLane, settings: FleetSettings, faults: dict[str, Any] | None = None, max_attempts: int = 5
) -> DispatchStats:
    """Ensure the fleet, switch faults on, send a lane's rows; return the dispatch's account."""
    async with Fleet(settings) as fleet:
        await fleet.ensure()
        for url in settings.servers.urls if faults else ():
            await switch(url, **(faults or {}))
        async with Dispatch(fleet, SAMPLING, VOCAB, max_attempts) as dispatch:
            await dispatch.run(lane)
            return dispatch.stats()


@attrs.define
class Nursery:
    """Embedded servers of one test, ended with it; each on a port that it keeps when started again."""

    folder: Path
    standins: list[Standin] = attrs.field(factory=list)

    def start(self, *argv: str, port: int | None = None) -> Standin:
        """Start one with seeds honoured: a row's ids depend on nothing but its prompt and seed."""
        flags = ["--enable-deterministic-inference", *argv]
        standin = start_standin(flags, self.folder / f"standin-{len(self.standins)}.log", port=port)
        self.standins.append(standin)
        return standin

    def start_again(self, dead: Standin, *argv: str) -> Standin:
        """Start one where another was."""
        dead.process.wait(timeout=120)
        return self.start(*argv, port=int(dead.url.rsplit(":", 1)[1]))

    def end(self) -> None:
        """End all that still run."""
        for standin in self.standins:
            try:
                standin.end()
            except subprocess.TimeoutExpired:
                standin.kill()

    def end_successors(self) -> None:
        """End whatever was started in their place, then all that still run."""
        for standin in self.standins:
            with suppress(SurroundingsError):
                asyncio.run(stop_server(find_server(standin.url), 5.0))
        self.end()


def ids_by_row(completions: list[Completion]) -> dict[str, list[int]]:
    """Return output ids by row."""
    return {c.row_id: c.output_ids.tolist() for c in completions}


def start_under(
    nursery: Nursery,
    wrapper: Sequence[str],
    *flags: str,
    program: str = sys.executable,
    cwd: Path = ROOT,
) -> Standin:
    """Start an embedded server as the last words of another program's command line; wait until it serves."""
    port, log = free_port(), nursery.folder / "wrapped.log"
    words = [program, "-m", "deployments.standin", "--host", "127.0.0.1", "--port", str(port), *flags]
    with log.open("ab") as out:
        process = subprocess.Popen(
            [*wrapper, *words],
            cwd=cwd,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    standin = Standin(f"http://127.0.0.1:{port}", process, log)
    nursery.standins.append(standin)
    wait_for_url(f"{standin.url}/ready", process, log)
    return standin
