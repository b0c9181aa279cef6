"""Exports held against the packages that read them, in an environment of their own (`make test-trainers`).

`RAWSEQ_TRAINERS_PYTHON` names its python; without it these tests are left out.
"""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from tasks.store.contract import ObjectStore
from tests.support.stores import loop, make_store, plain

HERE = Path(__file__).parent
Read = Callable[..., Any]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the trainers' tests out when no python with their packages was named."""
    if os.environ.get("RAWSEQ_TRAINERS_PYTHON"):
        return
    left_out = [item for item in items if item.get_closest_marker("trainers")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def read() -> Read:
    """Run a script of this folder with the trainers' python and return the JSON value it prints last."""

    def run(script: str, *arguments: Path | str | int) -> Any:
        command = [os.environ["RAWSEQ_TRAINERS_PYTHON"], str(HERE / script), *map(str, arguments)]
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=env)
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> ObjectStore:
    """Rows of many lengths, a tool loop, and one rejected row, in six batches."""
    rows = [plain(number, reasoning=3 + number % 9, content=1 + number % 5) for number in range(60)]
    rows[7] = attrs.evolve(rows[7], code="repetition")
    batches = [[*rows[12 * batch : 12 * batch + 12]] for batch in range(5)]
    return make_store(tmp_path_factory.mktemp("trainers") / "store", [*batches, loop("x")])
