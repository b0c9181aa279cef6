"""The trainers' pages: every command of ours runs, and what it says of files is there."""

import re
from pathlib import Path

import datasets
import pytest

from deployments.cli.cli import cli
from tasks.errors import JobError, SourceError
from tasks.export.formats import FORMATS
from tasks.export.masks import BOUNDARIES, SWITCHES
from tests.support.stores import make_store, plain

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted((ROOT / "tasks" / "export").glob("*.md"))
COMMANDS = [
    command
    for page in PAGES
    for command in re.findall(r"^\$ rawseq (export STORE .*)$", page.read_text(), re.MULTILINE)
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two small datasets, `STORE` and `OTHER`."""
    make_store(tmp_path / "STORE", [[plain(number) for number in range(20)]])
    make_store(tmp_path / "OTHER", [[plain(number) for number in range(30, 40)]], name="other")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(here: Path, command: str) -> None:
    """As they stand on the page; the conversation form looks for a tokenizer that these stores lack."""
    words = [word if word not in ("STORE", "OTHER") else str(here / word) for word in command.split()]
    if "specforge-conversations" in words:
        with pytest.raises((JobError, SourceError), match="tiny"):
            cli.main(words, standalone_mode=False)
        return
    assert cli.main(words, standalone_mode=False) == 0
    out = here / words[words.index("--out") + 1]
    page = next(page.read_text() for page in PAGES if command in page.read_text())
    for name in re.findall(rf"\b{out.name}/[\w./-]+\w", page):
        assert (here / name).exists() or name.endswith("hidden_states"), name


def test_datasets_loads_what_the_page_says(here: Path) -> None:
    """Both calls of the page give rows."""
    cli.main(["export", str(here / "STORE"), "--to", "datasets", "--out", "hf"], standalone_mode=False)
    cli.main(["export", str(here / "STORE"), "--to", "parquet", "--out", "parquet"], standalone_mode=False)
    loaded = datasets.load_from_disk("hf")["train"]
    files = {"train": "parquet/train/*.parquet"}
    again = datasets.load_dataset("parquet", data_files=files, cache_dir=str(here / "cache"))["train"]
    assert loaded["input_ids"][:] == again["input_ids"][:]
    assert len(loaded) == 20


def test_the_table_is_whole() -> None:
    """Every format, switch and boundary is on the first page."""
    text = (ROOT / "tasks" / "export" / "README.md").read_text()
    assert not [
        name for name in (*FORMATS, *SWITCHES, *BOUNDARIES) if f"`{name}`" not in text and name not in text
    ]


@pytest.mark.process
def test_the_loader_on_the_page_is_the_one_that_is_tested() -> None:
    """`pytorch.md` shows tests/trainers/direct_loader.py word for word."""
    code = (ROOT / "tests" / "trainers" / "direct_loader.py").read_text().split('"""', 2)[2].strip()
    assert code in (ROOT / "tasks" / "export" / "pytorch.md").read_text()
