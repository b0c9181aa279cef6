"""The sections of the page: what each measures, at full size and tiny, and how it is shown."""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from tests.bench import (
    audit,
    check_tokens,
    hot_path,
    journal,
    ledger,
    prefect_share,
    render,
    scale,
    schedule,
    startup,
)
from tests.bench.load import Load, rendered_once
from tests.bench.rounds import table


@attrs.frozen(slots=True)
class Section:
    """One part of the page.

    Args:
        title: its heading.
        about: what was run, and how to read it.
        measure: takes whether to be quick (which shows that it runs, and measures nothing); returns JSON.
        shown: what `measure` returned, as Markdown.
    """

    title: str
    about: str
    measure: Callable[[bool], Any]
    shown: Callable[[Any], str]


def _hot_path(quick: bool) -> Any:
    return hot_path.measure(40, 1, Load(), (16,)) if quick else hot_path.measure(4000, 5, Load())


def _schedule(quick: bool) -> Any:
    with rendered_once():
        return schedule.measure(4, 4, 1, 0.02) if quick else schedule.measure(64, 48, 5, 0.05)


def _checks(quick: bool) -> Any:
    rows, lengths = (50, (256,)) if quick else (1000, (256, 1024, 4096, 16384))
    return [check_tokens.measure(rows, length) for length in lengths]


def _show_checks(lines: Any) -> str:
    rows = [
        [
            f"{each['mean_output_ids']:.0f}",
            f"{each['ids_per_second'] / 1e6:.0f}",
            f"{each['ratio_to_target']:.2f}",
        ]
        for each in lines
    ]
    return table(["ids per row", "million ids per CPU second", "over the target of 50 M"], rows)


def _render(quick: bool) -> Any:
    return asyncio.run(render.measure(16, 10, [0], 1) if quick else render.measure(300, 100, [0, 1, 2], 5))


def _show_render(lines: Any) -> str:
    rows = [
        [
            {"loop": "on the loop", "0": "a thread"}.get(each["way"], f"{each['way']} processes"),
            f"{each['rows_per_second']:.0f}",
            f"**{each['ratio_to_thread']:.2f}**",
            f"{each['own_cpu_milliseconds_a_row']:.2f}",
            f"{each['longest_stall_milliseconds']:.0f}",
        ]
        for each in lines
    ]
    head = ["way", "rows/s", "over the thread's", "own CPU ms/row", "longest stall of the loop, ms"]
    return table(head, rows)


def _startup(quick: bool) -> Any:
    return startup.measure(300, 2.0, ()) if quick else startup.measure(1_000_000, 15.0)


def _scale(quick: bool) -> Any:
    return scale.measure(100, 50) if quick else scale.measure(200_000, 120_000)


def _ledger(quick: bool) -> Any:
    return ledger.measure((500,) if quick else (10_000, 100_000), Path(tempfile.gettempdir()))


def _journal(quick: bool) -> Any:
    return journal.measure(100 if quick else 2000, 1 if quick else 5, Path(tempfile.gettempdir()))


def _audit(quick: bool) -> Any:
    sizes = (500,) if quick else (10_000, 50_000)
    return [line for rows in sizes for line in audit.measure(rows, Path(tempfile.gettempdir()), False)]


def _share(quick: bool) -> Any:
    return prefect_share.measure(1, 5, 20) if quick else prefect_share.measure(6, 2000, 1000)


def _show_share(figures: Any) -> str:
    names = ("task_runs", "client_ms_per_batch", "server_ms_per_batch", "server_ms_per_table_update")
    shares = ("share_of_wall", "share_of_client_cpu", "share_of_cpu_with_server")
    rows = [[name.replace("_", " "), f"{figures[name]}"] for name in names]
    rows += [[name.replace("_", " "), f"**{figures[name]:.1%}**"] for name in shares]
    said = f"{figures['batches']} batches of {figures['rows_per_batch']} rows of {figures['ids_per_row']} ids"
    return table([said, "value"], rows)


SECTIONS = {
    "hot_path": Section(
        "CPU per row: 2,048 output ids, about 680 prompt ids, a server that answers at once",
        "`python -m tests.bench.hot_path`. `bare` is aiohttp + orjson + uvloop + int32 with our connector: "
        "the baseline. `C` is one epoll thread that parses ids and does nothing else; `raw protocol` is HTTP "
        "by hand on asyncio. `-like` names the transport and waiting of a peer, rewritten; "
        "`speculators 0.9.0` is its own regeneration command, over chat.",
        _hot_path,
        hot_path.shown,
    ),
    "schedule": Section(
        "Idle slots: log-normal service times (sigma 0.8, median 0.05 s), 64 slots, 48 rows a slot",
        "`python -m tests.bench.schedule`. The bound is max(sum / slots, longest); greedy is list scheduling "
        "in the same order. Targets: makespan / bound <= 1.08; two servers 4:1: >= 0.97 of their slots busy.",
        _schedule,
        schedule.shown,
    ),
    "startup": Section(
        "Startup on a million rows",
        "`python -m tests.bench.startup`. Planning reads the whole source once and is stated apart.",
        _startup,
        startup.shown,
    ),
    "render": Section(
        "Rendering beside the event loop",
        "`python -m tests.bench.render`. Chats of five messages of 100 words.",
        _render,
        _show_render,
    ),
    "check_tokens": Section(
        "Verdicts on one core, from int32 arrays",
        "`python -m tests.bench.check_tokens`.",
        _checks,
        _show_checks,
    ),
    "scale": Section(
        "Many rows in one run",
        "`python -m tests.bench.scale`: the whole product with Prefect, over a stub that answers at once.",
        _scale,
        scale.shown,
    ),
    "prefect_share": Section(
        "What Prefect costs",
        "`python -m tests.bench.prefect_share`. Target: <= 10 % of the client's CPU at the default batch.",
        _share,
        _show_share,
    ),
    "ledger": Section(
        "The ledger",
        "`python tests/bench/ledger.py`; ten million rows: `ledger.md`. Ratios to the smallest size.",
        _ledger,
        ledger.table,
    ),
    "journal": Section(
        "What durability costs a journal",
        "`python tests/bench/journal.py`. Rows of 500 + 2,048 ids, as fast as they are taken.",
        _journal,
        journal.table,
    ),
    "audit": Section(
        "The audit", "`python tests/bench/audit.py`. Ratios to the smallest size.", _audit, audit.table
    ),
}
