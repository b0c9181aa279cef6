"""An older SGLang (`make test-sglang SGLANG=0.5.9`): what it answers otherwise, and that it will do.

`older.json` holds, by version and case, which parts of the answer differ from what 0.5.23 said
(`genuine.json`). `RAWSEQ_SGLANG_RECORD=1` writes it anew. That jobs run on it is test_main_flow.py's matter.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.job.spec import ServersSpec
from tasks.sglang.client import Access, ServerClient
from tasks.sglang.gates import knows_prompt_echo, knows_seed, refusals, unwanted
from tasks.sglang.info import ServerInfo
from tests.contract.cases import CASES
from tests.contract.exchange import exchange
from tests.contract.test_contract import recorded
from tests.support.embedded import SAMPLING

RECORD = Path(__file__).parent / "older.json"
DEADLY = frozenset({"NaN"})
"""0.5.9 takes a temperature of NaN, and its scheduler dies of it."""


@pytest.fixture
async def info(genuine_url: str) -> ServerInfo:
    """What the server says of itself."""
    async with ServerClient(genuine_url, Access()) as client:
        return await client.info()


def parts(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of an answer with their paths; lists are leaves."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from parts(inner, f"{path}.{key}")
    else:
        yield path, value


def differences(one: Any, other: Any) -> list[str]:
    """Return the paths of the parts that differ or that only one has."""
    first, second = dict(parts(one)), dict(parts(other))
    absent = object()
    return sorted(p for p in {*first, *second} if first.get(p, absent) != second.get(p, absent))


@pytest.mark.sglang
@pytest.mark.timeout(1800)
async def test_what_differs_is_known(genuine_url: str, info: ServerInfo) -> None:
    """Case by case, the parts that differ from 0.5.23 are those on record for this version; all are told."""
    right = recorded()
    found = {
        case.name: told
        for case in CASES
        if case.name not in DEADLY
        and (told := differences(await exchange(genuine_url, case), right[case.name]))
    }
    for name, told in found.items():
        print(f"{info.version}: {name}: {', '.join(told)}")
    known = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    if os.environ.get("RAWSEQ_SGLANG_RECORD"):
        known[info.version] = found
        RECORD.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    assert found == known.get(info.version, found)


@pytest.mark.sglang
async def test_the_gates_know_it(info: ServerInfo) -> None:
    """It is not refused, its parser is seen, and what it does not know yet is not sent."""
    print(
        f"{info.version}: refusals {refusals(info, SAMPLING)}, seed {knows_seed(info.version)}, "
        f"prompt echo {knows_prompt_echo(info.version)}"
    )
    assert refusals(info, SAMPLING) == []
    assert unwanted(info, ServersSpec(urls=[info.url])) == ("--reasoning-parser",)
    assert (info.context_length, info.max_running_requests) == (4096, 4)
