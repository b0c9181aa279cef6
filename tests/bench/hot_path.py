"""What a row costs the client: rawseq's path by stages, the bare fetch, and what users would pick instead.

CPU per row against the stub, which answers at once: so the client is the cost. Ratios are paired within a
round; only they carry over to another machine.

Run: python -m tests.bench.hot_path [--rows N] [--rounds N] [--json FILE]
"""

import argparse
import json
from pathlib import Path
from typing import Any

from tests.bench.load import Load
from tests.bench.rounds import STUB_SHARE, Case, interleaved, machine, median, ratios, table

SLOWNESS = {"httpx": 8, "AsyncOpenAI": 16, "threads+requests": 8, "SpecForge-like": 40}
"""These get so many times fewer rows: a round must end, and figures are per row."""


def cases(rows: int, windows: tuple[int, ...] = (256, 2048)) -> list[Case]:
    """Return the lines of the table; slow clients only at the smaller window."""
    lines = []
    for number, window in enumerate(windows):
        many = max(rows, 2 * window)
        lines += [
            Case(name, many, window)
            for name in ("bare", "rawseq dispatch", "rawseq + journal", "rawseq whole")
        ]
        if number == 0:
            lines += [Case(name, many, window) for name in ("datatrove-like",)]
            lines += [Case(name, max(20, many // times), window) for name, times in SLOWNESS.items()]
    return lines


def measure(rows: int, rounds: int, load: Load, windows: tuple[int, ...] = (256, 2048)) -> dict[str, Any]:
    """Return the figures of every case and round, with the facts of the machine."""
    chosen = cases(rows, windows)
    return {"machine": machine(), "load": load.as_json(), "figures": interleaved(chosen, load, rounds)}


def shown(result: dict[str, Any]) -> str:
    """Return the table: CPU and throughput per client, over the bare fetch with the same window."""
    figures = result["figures"]
    lines = []
    for label, rounds in figures.items():
        window = int(label.rsplit("· ", 1)[1].split()[0])
        middle, least, most = ratios(figures, label, f"bare · {window} in flight")
        share = median(rounds, "stub_share")
        lines.append(
            [
                label,
                f"{median(rounds, 'us_per_row'):.0f}",
                f"**{middle:.2f}** ({least:.2f}–{most:.2f})",
                f"{median(rounds, 'rows_per_second'):.0f}",
                f"{median(rounds, 'peak_mb'):.0f}",
                f"{share:.2f}" + (" !" if share > STUB_SHARE else ""),
            ]
        )
    head = ["client", "CPU µs/row", "CPU / bare (range)", "rows/s", "peak MB", "stub's core share"]
    return table(head, lines)


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
