"""Many rows in one run, through everything but a model: pace, CPU by stage, memory, disk, and what more take.

Two loads: short replies (64 ids), so that rows a second are all that counts, and log-normal replies of 4,000
ids on average, so that bytes count. The stub answers at once. Prefect's own share of the event loop is what
the same number of empty steps takes (`prefect_share`).

Run: python -m tests.bench.scale [--short 200000] [--long 120000] [--json FILE]
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.load import Load
from tests.bench.pipeline import in_child, prefect
from tests.bench.rounds import machine, table

LOADS = {
    "short": Load(lengths="fixed:64", prompt=30),
    "long": Load(lengths="lognormal:2900:0.8:32768", prompt=30),
}
"""exp(0.8**2 / 2) = 1.38 times the median of 2,900 is a mean of 4,000."""

WORDS = 16
SIZES = (10_000_000, 100_000_000)


def measure(short: int, long: int, api: str | None = None) -> dict[str, Any]:
    """Return the figures of one run of each load."""
    with prefect(api) as url:
        runs = {
            name: _figures(in_child(LOADS[name], rows, WORDS, None, None, url), rows)
            for name, rows in (("short", short), ("long", long))
        }
    return {"machine": machine(), "runs": runs}


def _figures(made: dict[str, Any], rows: int) -> dict[str, Any]:
    times, curve, cpu = made["times"], made["curve"], made["cpu"]
    seconds = times["made"] - times["ensured"]
    late = [each for each in curve if each["rows"] >= rows / 5]  # render processes have started by then
    slope = _slope([each["rows"] for each in late], [each["rss_mb"] for each in late])
    return {
        "rows": rows,
        "plan_seconds": times["planned"] - times["open"],
        "seconds": seconds,
        "rows_per_second": rows / seconds,
        "cpu_seconds": cpu,
        "peak_mb": max(each["rss_mb"] for each in curve),
        "mb_per_million_rows": slope * 1e6,
        "most_journal_mb": max(each["journals_mb"] for each in curve),
        "store_mb": curve[-1]["out_mb"],
        "curve": curve,
    }


def _slope(rows: Sequence[float], megabytes: Sequence[float]) -> float:
    """Return by how many MB memory grows a row; 0.0 where that is lost in how it swings with each batch."""
    if len({*rows}) < 3:
        return 0.0
    slope, start = np.polyfit(rows, megabytes, 1)
    swing = float(np.std(np.subtract(megabytes, np.polyval((slope, start), rows))))
    return float(slope) if abs(slope) * (max(rows) - min(rows)) > 2 * swing else 0.0


def shown(result: dict[str, Any]) -> str:
    """Return the tables: pace and sizes, CPU by stage, the curve, what larger jobs would take."""
    runs = result["runs"]
    return "\n\n".join((_paces(runs), _stages(runs), _curves(runs), _larger(runs)))


def _paces(runs: dict[str, Any]) -> str:
    head = ["replies", "rows", "plan s", "s", "rows/s", "peak MB", "MB per million rows more"]
    head += ["most in journals, MB", "store, MB"]
    lines = [
        [
            name,
            f"{run['rows']:,}",
            f"{run['plan_seconds']:.1f}",
            f"{run['seconds']:.0f}",
            f"**{run['rows_per_second']:.0f}**",
            f"{run['peak_mb']:.0f}",
            f"{run['mb_per_million_rows']:.0f}",
            f"{run['most_journal_mb']:.0f}",
            f"{run['store_mb']:.0f}",
        ]
        for name, run in runs.items()
    ]
    return table(head, lines)


def _stages(runs: dict[str, Any]) -> str:
    stages = sorted({stage for run in runs.values() for stage in run["cpu_seconds"]})
    lines = []
    for stage in stages:
        line = [stage]
        for run in runs.values():
            seconds = run["cpu_seconds"].get(stage, 0.0)
            share = seconds / sum(run["cpu_seconds"].values())
            line.append(f"{1e6 * seconds / run['rows']:.0f} ({share:.0%})")
        lines.append(line)
    return table(["CPU µs a row (share)", *runs], lines)


def _curves(runs: dict[str, Any]) -> str:
    lines = []
    for name, run in runs.items():
        for part in (0.2, 0.4, 0.6, 0.8, 1.0):
            at = min(run["curve"], key=lambda each: abs(each["rows"] - part * run["rows"]))
            sizes = (f"{at[key]:.0f}" for key in ("rss_mb", "journals_mb", "out_mb"))
            lines.append([name, f"{at['rows']:,.0f}", f"{at['at']:.0f}", *sizes])
    return table(["replies", "rows made", "after s", "memory MB", "journals MB", "store MB"], lines)


def _larger(runs: dict[str, Any]) -> str:
    lines = []
    for name, run in runs.items():
        for size in SIZES:
            times = size / run["rows"]
            cpu = sum(run["cpu_seconds"].values()) * times / 3600
            lines.append(
                [
                    f"{name}, {size:,} rows",
                    f"{run['seconds'] * times / 3600:.1f}",
                    f"{run['plan_seconds'] * times / 60:.1f}",
                    f"{cpu:.1f}",
                    f"{run['peak_mb'] + max(0.0, run['mb_per_million_rows']) * size / 1e6:.0f}",
                    f"{run['store_mb'] * times / 1024:.1f}",
                ]
            )
    head = ["extrapolated, one process", "hours", "plan minutes", "CPU hours", "MB of memory", "store, GB"]
    return table(head, lines)


def main() -> None:
    """Print the tables; write the figures beside them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", type=int, default=200_000)
    parser.add_argument("--long", type=int, default=120_000)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result = measure(args.short, args.long)
    print(shown(result))
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
