"""What Prefect costs beside the work: CPU of client and server, wall time, calls, per batch and per row.

The main flow runs over a stub that answers at once, so that everything but the work of rawseq itself is as
small as it can get: with a model behind it, Prefect's share of the wall time only falls. CPU: what the five
steps of a batch cost without their work is measured beside it, with the same options, many at once as in the
flow. Wall time: the same flow with its steps as plain functions, in turns with the real one.

Run: python -m tests.bench.prefect_share [--batches 5] [--rows 2000] [--ids 2048] [--rounds 3] [--defaults]
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
import psutil

from deployments.local.server_settings import SERVER_SETTINGS
from tasks.run.tables import LAST, SHOWN
from tests.bench.load import MODEL, Load
from tests.bench.rounds import stub
from tests.conftest import free_port, prefect_server

STEPS = ("render_prompts", "generate_tokens", "check_tokens", "upload_shard", "commit_batch")
UPDATES = 100
SETTLE_SECONDS = 2.0
SETTLE_LOOKS = 15
QUIET_CPU_SECONDS = 0.05
"""The server writes task runs behind their events: its CPU is read when it did next to nothing meanwhile."""


@attrs.frozen(slots=True)
class Cost:
    """What something took.

    Args:
        wall: seconds.
        client: CPU seconds of this process.
        server: CPU seconds of the Prefect server.
    """

    wall: float
    client: float
    server: float


def job(url: str, folder: Path, batches: int, rows: int) -> dict[str, Any]:
    """Return the job: default settings but for the batch's size."""
    folder.mkdir(exist_ok=True)
    prompts = folder / "prompts.jsonl"
    with prompts.open("w") as file:
        for number in range(batches * rows):
            file.write(
                json.dumps({"id": str(number), "prompt": f"Number {number}. " + "item 7 " * 60}) + "\n"
            )
    return {
        "name": "share",
        "model": MODEL.model_dump(),
        "prompts": {"sources": [str(prompts)]},
        "servers": {"urls": [url]},
        "sampling": {"max_new_tokens": 65536},
        "batch": {"rows": rows, "journal_dir": str(folder / "journals")},
        "store": {"uri": str(folder / "out")},
    }


def measured(work: Any, server: psutil.Process) -> Cost:
    """Run a coroutine on an event loop of its own; return its cost, the server's afterwork included."""
    before, begun, cpu = _cpu(server), time.monotonic(), time.process_time()
    asyncio.run(work)
    wall, client = time.monotonic() - begun, time.process_time() - cpu
    last, now = -1.0, _cpu(server)
    for _ in range(SETTLE_LOOKS):
        if now - last < QUIET_CPU_SECONDS:
            break
        time.sleep(SETTLE_SECONDS)
        last, now = now, _cpu(server)
    return Cost(wall, client, now - before)


def _cpu(server: psutil.Process) -> float:
    """Return the CPU seconds of the server and its children."""
    times = [each.cpu_times() for each in (server, *server.children(recursive=True))]
    return sum(each.user + each.system for each in times)


async def main_flow(fields: dict[str, Any]) -> None:
    """Run the product's flow."""
    from flows.generate import generate_dataset
    from tasks.job.spec import JobSpec

    state = await generate_dataset(JobSpec.model_validate(fields), return_state=True)
    assert state.is_completed(), state.message


async def bare_flow(fields: dict[str, Any]) -> None:
    """Run the product's flow with its steps as plain functions."""
    from prefect import Task

    from flows import chain, generate

    steps = [
        (module, name, value)
        for module in (chain, generate)
        for name, value in vars(module).items()
        if isinstance(value, Task)
    ]
    assert {*STEPS} < {name for _, name, _ in steps}
    try:
        for module, name, step in steps:
            setattr(module, name, step.fn)
        await main_flow(fields)
    finally:
        for module, name, step in steps:
            setattr(module, name, step)


async def empty_steps(batches: int) -> None:
    """Run a flow with the same task runs, which do nothing."""
    from prefect import flow, task

    from tasks.steps import STEP

    async def nothing() -> None:
        return None

    steps = [task(name=name, task_run_name=f"{name} 000000 [0,2000)", **STEP)(nothing) for name in STEPS]

    async def chain() -> None:
        for step in steps:
            await step()

    @flow(name="empty-steps", persist_result=False)
    async def empty() -> None:
        await asyncio.gather(*(chain() for _ in range(batches)))

    await empty()


async def table_updates(count: int) -> None:
    """Change a table artifact of the largest size that the live view makes."""
    from prefect import get_client
    from prefect.artifacts import acreate_table_artifact
    from prefect.client.schemas.actions import ArtifactUpdate

    row = {
        "batch": "000000 [0,1000)",
        "state": "generating",
        "rows": "999 of 1000",
        "seconds": 99,
        "reason": "",
    }
    table = [row] * (2 * SHOWN + LAST)
    made = await acreate_table_artifact(table=table, description="Batches")
    async with get_client() as client:
        for _ in range(count):
            await client.update_artifact(made, ArtifactUpdate(data=json.dumps(table)))


def report(batches: int, rows: int, ids: int, costs: Sequence[Cost], bare: Sequence[Cost]) -> dict[str, Any]:
    """Return the figures: Prefect's part, and its share of what the whole takes.

    Args:
        batches: of one run.
        rows: of a batch.
        ids: of a row.
        costs: of the empty steps, of the table's updates, then of each run of the flow.
        bare: of each run of the flow with plain functions.
    """
    empty, updates, *wholes = costs
    client, wall = (statistics.median(getattr(each, name) for each in wholes) for name in ("client", "wall"))
    bare_wall = statistics.median(each.wall for each in bare)
    return {
        "batches": batches,
        "rows_per_batch": rows,
        "ids_per_row": ids,
        "task_runs": len(STEPS) * batches + 3,
        "task_runs_per_million_rows": round(1e6 / rows * len(STEPS)),
        "client_ms_per_row": round(1000 * client / (batches * rows), 2),
        "walls": [round(each.wall, 2) for each in wholes],
        "bare_walls": [round(each.wall, 2) for each in bare],
        "client_ms_per_batch": round(1000 * empty.client / batches, 1),
        "server_ms_per_batch": round(1000 * empty.server / batches, 1),
        "server_ms_per_table_update": round(1000 * updates.server / UPDATES, 1),
        "share_of_wall": round(1 - bare_wall / wall, 4),
        "share_of_client_cpu": round(empty.client / client, 4),
        "share_of_cpu_with_server": round((empty.client + empty.server) / (client + empty.server), 4),
    }


@contextmanager
def surroundings(
    ids: int, api: str | None, settings: dict[str, str]
) -> Iterator[tuple[str, psutil.Process, Path]]:
    """Run a stub, and a Prefect server unless `api` names one here; yield stub, server, a folder."""
    load = Load(lengths=f"fixed:{ids}", service="fixed:0")
    with tempfile.TemporaryDirectory() as name, stub(load) as url, ExitStack() as stack:
        folder, port = Path(name), free_port()
        if api is None:
            stack.enter_context(prefect_server(folder, port, **settings))
        os.environ |= {"PREFECT_HOME": name, "PREFECT_API_URL": api or f"http://127.0.0.1:{port}/api"}
        yield url, listening(os.environ["PREFECT_API_URL"]), folder


def listening(api: str) -> psutil.Process:
    """Return the process that listens at an address of this machine."""
    port = urlsplit(api).port
    found = (each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN)
    return psutil.Process(next(each.pid for each in found if each.laddr.port == port))


def measure(
    batches: int, rows: int, ids: int, rounds: int = 1, api: str | None = None, *, defaults: bool = False
) -> dict[str, Any]:
    """Return the figures of one measurement; `defaults`: the server writes as Prefect sets it up."""
    with surroundings(ids, api, {} if defaults else SERVER_SETTINGS) as (url, server, folder):
        measured(empty_steps(1), server)  # what is loaded and connected once
        costs = [measured(empty_steps(batches), server), measured(table_updates(UPDATES), server)]
        asyncio.run(main_flow(job(url, folder / "warm", 1, 10)))  # tokenizer, imports, threads
        bare = []
        for number in range(rounds):
            bare.append(measured(bare_flow(job(url, folder / f"bare{number}", batches, rows)), server))
            costs.append(measured(main_flow(job(url, folder / f"whole{number}", batches, rows)), server))
    return report(batches, rows, ids, costs, bare)


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("batches", 5), ("rows", 2000), ("ids", 2048), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--api", help="of a Prefect server on this machine that nobody else uses")
    parser.add_argument("--defaults", action="store_true", help="the server writes as Prefect sets it up")
    args = parser.parse_args()
    figures = measure(args.batches, args.rows, args.ids, args.rounds, args.api, defaults=args.defaults)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
