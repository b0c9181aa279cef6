"""Every bench after the other; the figures become tests/bench/results.json, the page results.md beside it.

Run: make bench, or python -m tests.bench [--quick] [--only SECTION ...]

A section that is not run keeps the figures it had, with the commit and the time that made them.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.bench.rounds import machine
from tests.bench.sections import SECTIONS

HERE = Path(__file__).parent


def run(names: Iterable[str], *, quick: bool) -> dict[str, Any]:
    """Return the figures of these sections, each with its machine and duration."""
    results = {}
    for name in names:
        print(f"== {name}", file=sys.stderr, flush=True)
        facts, begun = machine(), time.monotonic()
        figures = SECTIONS[name].measure(quick)
        results[name] = {"machine": facts, "seconds": round(time.monotonic() - begun, 1), "figures": figures}
    return results


def report(results: dict[str, Any]) -> str:
    """Return the page."""
    parts = ["# Results of `make bench`", origin(results)]
    for name, section in SECTIONS.items():
        if name in results:
            made = results[name]
            where = (
                f"Commit {made['machine']['commit']}, {made['machine']['at']} UTC, {made['seconds']:.0f} s, "
            )
            where += f"load average {made['machine']['load_average']} before."
            parts += [f"## {section.title}", f"{section.about} {where}", section.shown(made["figures"])]
    return "\n\n".join(parts)


def origin(results: dict[str, Any]) -> str:
    """Return where the figures come from."""
    facts = next(iter(results.values()))["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    return (
        f"{facts['cores']} cores ({facts['machine']}, {facts['system']}), Python {facts['python']}, "
        f"{versions}. "
        "Medians of interleaved rounds. Only ratios within one table carry over to another machine. "
        "What each bench does: [README.md](README.md); what was tried: [profiles.md](profiles.md); "
        "longer runs and another machine: [by_hand.md](by_hand.md), [ledger.md](ledger.md)."
    )


def main() -> None:
    """Run, write the figures and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, nothing written")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="SECTION")
    args = parser.parse_args()
    kept, results = HERE / "results.json", {}
    if kept.exists() and not args.quick:
        results = json.loads(kept.read_text())
    for name in args.only:
        results |= run([name], quick=args.quick)
        if not args.quick:
            kept.write_text(json.dumps(results, indent=1) + "\n")
            (HERE / "results.md").write_text(report(results) + "\n")
    print(report(results))


if __name__ == "__main__":
    main()
