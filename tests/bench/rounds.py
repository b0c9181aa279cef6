"""Interleaved rounds: every client once per round, each in its own process against a stub of its own."""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import attrs
import httpx

from tests.bench.load import Load, rendered_once

ROOT = Path(__file__).parents[2]
STUB_SHARE = 0.8
"""A stub that needs more than that of a core bounds the throughput itself: such a round proves nothing."""


MODULES = {"C": "tests.bench.floor", "speculators 0.9.0": "tests.bench.speculators_peer"}
"""Clients with a program of their own; all others are `tests.bench.client`'s."""


@attrs.frozen(slots=True)
class Case:
    """One line of a table.

    Args:
        name: a client of `tests.bench.client`.
        rows: rows per round; slow clients get fewer, figures are per row.
        window: rows in flight; 0: rawseq's own choice from what the server tells.
        rounds: how many rounds it takes part in at most.
    """

    name: str
    rows: int
    window: int
    rounds: int = 1000

    @property
    def label(self) -> str:
        """Name in the table."""
        return f"{self.name} · {self.window} in flight" if self.window else self.name


@contextmanager
def stub(load: Load) -> Iterator[str]:
    """Run a stub; yield its URL."""
    argv = [sys.executable, "-m", "tests.bench.stub", "--load", load.as_json()]
    with subprocess.Popen(
        argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        try:
            assert child.stdout is not None
            yield child.stdout.readline().strip()
        finally:
            child.terminate()


def counters(url: str) -> dict[str, Any]:
    """Return what a stub counted."""
    return dict(httpx.get(f"{url}/stub/counters", trust_env=False).json())


def begin(url: str) -> None:
    """Let a stub forget what it counted before a run."""
    httpx.get(f"{url}/stub/begin", trust_env=False).raise_for_status()


def one(case: Case, load: Load, url: str, tries: int = 3) -> dict[str, Any]:
    """Run one client once; return its figures, with the stub's share of a core meanwhile.

    A rival that fails is tried again (httpx uses a connection that the server has just closed); we are not.
    """
    before = counters(url)
    argv = [sys.executable, "-m", MODULES.get(case.name, "tests.bench.client"), case.name, "--url", url]
    argv += ["--load", load.as_json(), "--rows", str(case.rows), "--window", str(case.window)]
    out = subprocess.run(argv, cwd=ROOT, check=False, capture_output=True, text=True)
    if out.returncode and tries > 1 and not case.name.startswith("rawseq"):
        print(f"{case.label} failed, once more: {out.stderr[-200:]}", file=sys.stderr, flush=True)
        return one(case, load, url, tries - 1)
    if out.returncode:
        raise RuntimeError(f"{case.label}: exit {out.returncode}\n{out.stderr[-3000:]}")
    after = counters(url)
    figures: dict[str, Any] = json.loads(out.stdout.splitlines()[-1])
    figures["us_per_row"] = 1e6 * figures["cpu_seconds"] / figures["rows"]
    figures["rows_per_second"] = figures["rows"] / figures["wall_seconds"]
    figures["stub_share"] = (after["cpu_seconds"] - before["cpu_seconds"]) / figures["wall_seconds"]
    figures["connections"] = after["connections"] - before["connections"]
    return figures


def interleaved(cases: Sequence[Case], load: Load, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Run every case once per round, in turn, against one stub; return the figures of each by label."""
    figures: dict[str, list[dict[str, Any]]] = {case.label: [] for case in cases}
    with rendered_once(), stub(load) as url:
        for number in range(rounds):
            for case in cases if number % 2 == 0 else reversed(cases):
                if number >= case.rounds:
                    continue
                figures[case.label].append(one(case, load, url))
                print(f"round {number + 1}/{rounds}: {case.label}", file=sys.stderr, flush=True)
    return figures


def ratios(
    figures: dict[str, list[dict[str, Any]]], label: str, base: str, key: str = "us_per_row"
) -> tuple[float, float, float]:
    """Return median, least and most of label / base, paired round by round, as far as both go."""
    pairs = [mine[key] / theirs[key] for mine, theirs in zip(figures[label], figures[base], strict=False)]
    return statistics.median(pairs), min(pairs), max(pairs)


def median(figures: list[dict[str, Any]], key: str) -> float:
    """Return the median of one figure over the rounds."""
    return statistics.median(f[key] for f in figures)


def machine() -> dict[str, Any]:
    """Return what a reader must know of the machine and the code that made a table."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    packages = ("aiohttp", "orjson", "uvloop", "numpy", "prefect", "httpx", "openai", "transformers")
    return {
        "commit": commit.stdout.strip() or "unknown",
        "cores": os.cpu_count(),
        "machine": f"{_cpu_model()}, {platform.machine()}",
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
        "load_average": round(os.getloadavg()[0], 1),
        "at": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
    }


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown CPU"
    )


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
