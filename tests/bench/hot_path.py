"""What a row costs the client: the floor in C and in Python, rawseq's path by stages, what users would pick.

CPU per row against the stub, which answers at once: so the client is the cost. Ratios are paired within a
round; only they carry over to another machine.

Run: python -m tests.bench.hot_path [--rows N] [--rounds N] [--json FILE]
"""

import argparse
import json
from pathlib import Path
from typing import Any

import attrs

from tests.bench import floor, speculators_peer
from tests.bench.load import Load
from tests.bench.rounds import STUB_SHARE, Case, interleaved, machine, median, ratios, table

SLOWNESS = {
    "speculators 0.9.0": 4,
    "httpx": 8,
    "AsyncOpenAI": 16,
    "threads+requests": 8,
    "SpecForge-like": 40,
}
"""These get so many times fewer rows: a round must end, and figures are per row."""

WIDE = ("speculators 0.9.0", "httpx", "AsyncOpenAI")
"""Of those, the ones that can fill the larger window at all: in the first round only, one row a slot."""

LONG = Load(lengths="fixed:32768")
"""Replies for which parsing is the cost, whatever the client."""

OFTENER = 3
"""Times as many rounds for fast clients: what they differ by is less than what a machine swings by."""

FLIGHT = 1024
"""Rows in flight where replies take seconds: window of the target for datatrove-like."""

SLOW = Load(service="lognormal:3:0.3:9", slots=FLIGHT, told=FLIGHT)
"""Replies that come one by one, so that a window is full all the time: where all come at once, a slow client
never fills its own, and what it costs to wait for the first of many does not show."""


def missing() -> dict[str, str]:
    """Return which clients cannot run here, and why."""
    asked = {"C": floor.missing(), "speculators 0.9.0": speculators_peer.missing()}
    return {name: why for name, why in asked.items() if why}


def cases(rows: int, rounds: int, windows: tuple[int, ...] = (256, 2048)) -> list[Case]:
    """Return the lines of the table, slowest last; slow ones take part in the first `rounds` only."""
    lines = []
    for number, window in enumerate(windows):
        many = max(rows, 2 * window)
        stages = ("raw protocol", "rawseq dispatch", "rawseq + journal") if number == 0 else ()
        names = ("C", "bare", *stages, "rawseq whole", "datatrove-like")
        lines += [Case(name, many, window) for name in names]
        if number == 0:
            lines += [Case(name, max(20, many // times), window, rounds) for name, times in SLOWNESS.items()]
        else:
            lines += [Case(name, window, window, rounds=1) for name in WIDE]
    return lines


def flight_cases(window: int) -> list[Case]:
    """Return the lines of the table of full windows."""
    lines = [Case(name, 6 * window, window) for name in ("bare", "rawseq whole", "datatrove-like")]
    return [*lines, *(Case(name, window, window, rounds=1) for name in ("httpx", "AsyncOpenAI"))]


def measure(rows: int, rounds: int, load: Load, windows: tuple[int, ...] = (256, 2048)) -> dict[str, Any]:
    """Return the figures of every case and round, with the facts of the machine."""
    absent = missing()
    chosen = [case for case in cases(rows, rounds, windows) if case.name not in absent]
    long = [Case(name, max(20, rows // 8), windows[0]) for name in ("C", "bare", "rawseq whole")]
    long = [case for case in long if case.name not in absent]
    flight = flight_cases(min(rows, FLIGHT))[: None if rounds > 1 else 3]
    return {
        "machine": machine(),
        "load": load.as_json(),
        "missing": absent,
        "figures": interleaved(chosen, load, OFTENER * rounds if rounds > 1 else 1),
        "long": interleaved(long, LONG, rounds),
        "flight": interleaved(flight, SLOW if rows >= FLIGHT else load, rounds),
    }


def shown(result: dict[str, Any]) -> str:
    """Return the tables: CPU and throughput per client, over the bare fetch and the compiled floor."""
    absent = [f"Left out: {name}: {why}." for name, why in result["missing"].items()]
    parts = [_lines(result["figures"]), *absent, "Replies of 32,768 ids:", _lines(result["long"])]
    parts += ["Replies of 2,048 ids after about three seconds each, so that the whole window is in flight:"]
    return "\n\n".join((*parts, _lines(result["flight"]), targets(result)))


def _lines(figures: dict[str, Any]) -> str:
    lines = []
    for label, rounds in figures.items():
        window = label.rsplit("· ", 1)[1]
        middle, least, most = ratios(figures, label, f"bare · {window}")
        share = median(rounds, "stub_share")
        floor_label = f"C · {window}"
        over = f"{ratios(figures, label, floor_label)[0]:.1f}" if floor_label in figures else "-"
        lines.append(
            [
                label + ("" if len(rounds) > 1 else " (one round)"),
                f"{median(rounds, 'us_per_row'):.0f}",
                f"**{middle:.2f}** ({least:.2f}–{most:.2f})",
                over,
                f"{median(rounds, 'rows_per_second'):.0f}",
                f"{median(rounds, 'peak_mb'):.0f}" if label != floor_label else "-",
                f"{share:.2f}" + (" !" if share > STUB_SHARE else ""),
            ]
        )
    head = ["client", "CPU µs/row", "CPU / bare (range)", "CPU / C", "rows/s", "peak MB", "stub's core share"]
    return table(head, lines)


@attrs.frozen(slots=True)
class Target:
    """A ratio that must hold: `key` of one line over `key` of another, at most or at least `bound`."""

    says: str
    mine: str
    theirs: str
    bound: float
    most: bool = True
    key: str = "us_per_row"
    part: str = "figures"

    def line(self, result: dict[str, Any]) -> list[str] | None:
        """Return its line of the table; None when one of the two was not measured."""
        figures = result[self.part]
        if self.mine not in figures or self.theirs not in figures:
            return None
        middle, least, most = ratios(figures, self.mine, self.theirs, self.key)
        met = middle <= self.bound if self.most else middle >= self.bound
        sign = "<=" if self.most else ">="
        return [
            self.says,
            f"**{middle:.2f}** ({least:.2f}–{most:.2f})",
            f"{sign} {self.bound:g}",
            "yes" if met else "**no**",
        ]


def wanted(small: int, large: int, full: int) -> list[Target]:
    """Return the targets of issue 7 that this bench can judge, for two windows and one that is full."""
    near, far, flying = f"{small} in flight", f"{large} in flight", f"{full} in flight"
    whole, whole_far, rate = f"rawseq whole · {near}", f"rawseq whole · {far}", "rows_per_second"
    return [
        Target("whole path / bare fetch", whole, f"bare · {near}", 1.3),
        Target("whole path / bare fetch, large window", whole_far, f"bare · {far}", 1.3),
        Target("whole path / C", whole, f"C · {near}", 16),
        Target("bare fetch / Python by hand", f"bare · {near}", f"raw protocol · {near}", 2.5),
        Target("whole path / C, 32,768 ids", whole, f"C · {near}", 8, part="long"),
        Target("whole path, large window / small", whole_far, whole, 1.5),
        Target("rows/s over SpecForge-like", whole, f"SpecForge-like · {near}", 40, most=False, key=rate),
        Target("AsyncOpenAI / whole path", f"AsyncOpenAI · {near}", whole, 8, most=False),
        Target("AsyncOpenAI / whole path, large window", f"AsyncOpenAI · {far}", whole_far, 8, most=False),
        Target("httpx / whole path", f"httpx · {near}", whole, 15, most=False),
        Target(
            f"datatrove-like / whole path, {flying}",
            f"datatrove-like · {flying}",
            f"rawseq whole · {flying}",
            2.5,
            most=False,
            part="flight",
        ),
        Target(
            "journal and checks / bare fetch, as the target's anchor has it", whole, f"bare · {near}", 1.45
        ),
        Target("journal and checks / dispatch alone", whole, f"rawseq dispatch · {near}", 1.45),
        Target("rows/s kept, over the bare fetch", whole, f"bare · {near}", 0.75, most=False, key=rate),
        Target("rows/s kept, over dispatch", whole, f"rawseq dispatch · {near}", 0.75, most=False, key=rate),
    ]


def targets(result: dict[str, Any]) -> str:
    """Return the table of targets."""
    windows, full = _windows(result["figures"]), _windows(result["flight"])[0]
    chosen = wanted(windows[0], windows[-1], full)
    lines = [line for target in chosen if (line := target.line(result)) is not None]
    return table(["ratio (CPU per row unless rows/s)", "median (range)", "target", "met"], lines)


def _windows(figures: dict[str, Any]) -> list[int]:
    return sorted({int(label.rsplit("· ", 1)[1].split()[0]) for label in figures})


def main() -> None:
    """Print the table; write the figures beside it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--windows", type=int, nargs="+", default=[256, 2048])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result = measure(args.rows, args.rounds, Load(), windows=tuple(args.windows))
    print(shown(result))
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
