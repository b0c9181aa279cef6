"""One table of requests, two servers: where they differ, the stand-in is wrong.

`genuine.json` holds what SGLang 0.5.23 answered (float32, CPU). `RAWSEQ_SGLANG_RECORD=1` with a genuine
server writes it anew; without one the stand-in is held to it.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.contract.cases import CASES, Case
from tests.contract.exchange import exchange

RECORD = Path(__file__).parent / "genuine.json"

cases = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


def recorded() -> dict[str, Any]:
    """Return what the genuine server said, by case."""
    return dict(json.loads(RECORD.read_text(encoding="utf-8"))["answers"]) if RECORD.exists() else {}


@pytest.mark.sglang
@cases
async def test_the_record_is_what_sglang_says(genuine_url: str, case: Case) -> None:
    """A genuine server answers as recorded."""
    answer = await exchange(genuine_url, case)
    if os.environ.get("RAWSEQ_SGLANG_RECORD"):
        answers = recorded() | {case.name: answer}
        content = {"version": "0.5.23", "dtype": "float32", "answers": answers}
        RECORD.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert answer == recorded()[case.name]


@cases
async def test_the_stand_in_answers_as_sglang(standin_url: str, case: Case) -> None:
    """The stand-in answers as the genuine server was recorded to."""
    assert await exchange(standin_url, case) == recorded()[case.name]
