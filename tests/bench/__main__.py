"""Every bench after the other; the tables become tests/bench/results.md, the figures results.json beside it.

Run: make bench, or python -m tests.bench [--quick]
"""

import argparse
import json
from pathlib import Path
from typing import Any

from tests.bench import check_tokens, hot_path, schedule
from tests.bench.load import Load
from tests.bench.rounds import machine, table

HERE = Path(__file__).parent


def run(*, quick: bool) -> dict[str, Any]:
    """Return the figures of all benches; `quick` shows that they run, and measures nothing."""
    rows, rounds, windows = (60, 1, (16,)) if quick else (2000, 5, (256, 2048))
    lengths = (256,) if quick else (256, 1024, 4096, 16384)
    return {
        "machine": machine(),
        "windows": windows,
        "hot_path": hot_path.measure(rows, rounds, Load(), windows),
        "schedule": schedule.measure(4, 4, 1, 0.02) if quick else schedule.measure(64, 64, 5, 0.06),
        "check_tokens": [check_tokens.measure(50 if quick else 1000, length) for length in lengths],
    }


def report(result: dict[str, Any]) -> str:
    """Return the page."""
    checks = [
        [
            f"{each['mean_output_ids']:.0f}",
            f"{each['ids_per_second'] / 1e6:.0f}",
            f"{each['ratio_to_target']:.2f}",
        ]
        for each in result["check_tokens"]
    ]
    parts = (
        "# Results of `make bench`",
        origin(result["machine"]),
        "## CPU per row: 2,048 output ids, about 500 prompt ids, a server that answers at once",
        hot_path.shown(result["hot_path"]),
        "## Idle slots: log-normal service times (sigma 0.8)",
        schedule.shown(result["schedule"]),
        "## Verdicts on one core, from int32 arrays",
        table(["ids per row", "million ids per CPU second", "over the target of 50 M"], checks),
    )
    return "\n\n".join(parts)


def origin(facts: dict[str, Any]) -> str:
    """Return where the figures come from."""
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    return (
        f"Commit {facts['commit']}, {facts['cores']} cores ({facts['machine']}, {facts['system']}), "
        f"load average {facts['load_average']} before. Python {facts['python']}, {versions}. "
        "Only ratios within one table carry over to another machine."
    )


def main() -> None:
    """Run all, write the page and the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, nothing written")
    args = parser.parse_args()
    result = run(quick=args.quick)
    page = report(result)
    print(page)
    if not args.quick:
        (HERE / "results.md").write_text(page + "\n")
        (HERE / "results.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
