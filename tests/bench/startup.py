"""How soon the first request goes out on a big source, whether rows wait rendered, whether memory stays flat.

A source is planned whole; then rows are made for a while over a stub of fixed slots. Planning is stated
apart: it is linear in the source. The same window over a small source says what memory should be.

Run: python -m tests.bench.startup [--rows 1000000] [--seconds 20] [--json FILE]
"""

import argparse
import json
from pathlib import Path
from typing import Any

from tests.bench.load import Load
from tests.bench.pipeline import in_child, prefect
from tests.bench.rounds import machine, table

LOAD = Load(lengths="fixed:64", service="fixed:0.4", slots=256, told=256, prompt=60)
"""640 rows a second at most: more than most fleets finish."""

SMALL = 10_000
WORDS = 40


def measure(
    rows: int, seconds: float, processes: tuple[int, ...] = (1, 2), api: str | None = None
) -> dict[str, Any]:
    """Return the figures of a small source and of the big one with so many render processes each."""
    lines = []
    with prefect(api) as url:
        for size, count in (
            (min(SMALL, rows), next(iter(processes), 0)),
            *((rows, count) for count in processes),
        ):
            made = in_child(LOAD, size, WORDS, count, seconds, url)
            lines.append({"rows": size, "processes": count, **_figures(made), "curve": made["curve"]})
    return {"machine": machine(), "lines": lines}


def _figures(made: dict[str, Any]) -> dict[str, float]:
    times, curve = made["times"], made["curve"]
    flying = next(each for each in curve if each["in_flight"])
    full = [each for each in curve if each["rows"] and each["rows"] < curve[-1]["rows"]]
    span = curve[-1]["at"] - flying["at"]
    return {
        "plan_seconds": times["planned"] - times["open"],
        "probe_seconds": times["ensured"] - times["planned"],
        "first_request_seconds": flying["at"],  # since the fleet was open: rendering, and a process's start
        "rows_per_second": curve[-1]["rows"] / span if span else 0.0,
        "least_ready": min((each["ready"] for each in full), default=0.0),
        "peak_mb": max(each["rss_mb"] for each in curve),
    }


def shown(result: dict[str, Any]) -> str:
    """Return the table."""
    base = result["lines"][0]["peak_mb"]
    head = ["source rows", "render processes", "plan s", "probe s", "then first request s"]
    head += ["rows/s (limit 640)", "fewest rows waiting rendered", "peak MB, processes included (ratio)"]
    lines = [
        [
            f"{each['rows']:,}",
            f"{each['processes']}",
            f"{each['plan_seconds']:.1f}",
            f"{each['probe_seconds']:.1f}",
            f"**{each['first_request_seconds']:.1f}**",
            f"{each['rows_per_second']:.0f}",
            f"{each['least_ready']:.0f}",
            f"{each['peak_mb']:.0f} ({each['peak_mb'] / base:.2f})",
        ]
        for each in result["lines"]
    ]
    return table(head, lines)


def main() -> None:
    """Print the table; write the figures beside it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result = measure(args.rows, args.seconds)
    print(shown(result))
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
