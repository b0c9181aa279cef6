"""Small files that are made once: whole or absent, made again where a kill or a full disk left them empty."""

import stat
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from deployments.local.demo import DemoHome
from deployments.local.folder import StackHome
from tasks.ledger.fence import home_of
from tasks.store.disk import lasting_text


@pytest.mark.parametrize("left", [None, ""], ids=["absent", "left empty"])
def test_it_is_made_once_and_kept(tmp_path: Path, left: str | None) -> None:
    """For this user only; nothing else is left beside it."""
    path, numbers = tmp_path / "deep" / "name", count()
    if left is not None:
        path.parent.mkdir()
        path.write_text(left)
    made = [lasting_text(path, lambda: f"made {next(numbers)}") for _ in range(3)]
    assert made == ["made 0"] * 3
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["name"]


def test_of_many_that_make_it_at_once_one_is_first(tmp_path: Path) -> None:
    """All read the same."""
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda n: lasting_text(tmp_path / f"a{n % 4}", lambda: str(n)), range(4)))
    assert len(found) == 4


@pytest.mark.parametrize("name", ["home", "api-auth", "credentials.json", "stack.json"])
def test_files_that_a_kill_left_empty_are_not_believed(tmp_path: Path, name: str) -> None:
    """The name of a folder of journals, the stack's password and record, the demo's keys."""
    folder = tmp_path / "rawseq-demo" if name == "credentials.json" else tmp_path
    folder.mkdir(exist_ok=True)
    (folder / name).touch()
    told = {
        "home": lambda: home_of(tmp_path),
        "api-auth": lambda: StackHome(tmp_path).auth_string({}, wanted=True),
        "stack.json": lambda: StackHome(tmp_path).ports(),
        "credentials.json": lambda: DemoHome(tmp_path).credentials["aws_access_key_id"],
    }[name]
    assert told()
    assert told() == told()
