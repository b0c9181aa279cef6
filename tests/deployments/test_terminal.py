"""Terminals: what came from a prompt, a server or a model never acts upon one, whatever it holds."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from deployments.cli.cli import cli
from deployments.cli.console import Terminal, checks_table, escaped, print_sequence
from deployments.local.presets import STANDIN_MODEL
from tasks.errors import SourceError
from tasks.rows.records import Segment
from tests.conftest import ROOT

HOSTILE = {
    "clipboard": "\x1b]52;c;aGk=\x07",
    "title": "\x1b]0;owned\x1b\\",
    "cursor": "\x1b[2J\x1b[H",
    "c1": "\x9b2J\x85",
    "overwrite": "good\rbad\x08\x08",
    "bidi": "\u202etxt.exe\u2066\u200f",
    "surrogate": "half \ud800",
}
"""Kind to text: each would act upon a terminal, or could not be written to it."""

MARKUP = ("[/THINK]", "[link=https://x.test]y[/link]", "[bold red]no[/]", ":smile:")
"""What rich would take for markup: models write it."""

ACTS = re.compile(
    r"\x1b(?!\[[0-9;]*m)|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200f]"
)
"""Anything but text and colours."""


def on_terminal(*renderables: object) -> str:
    """Return what a terminal of 200 columns is sent."""
    file = io.StringIO()
    console = Terminal(file=file, force_terminal=True, width=200, color_system="standard")
    for renderable in renderables:
        console.print(renderable)
    return file.getvalue()


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_is_escaped_however_it_is_printed(text: str) -> None:
    """As a line, as styled text, in a table, in a sequence: it is legible and acts upon nothing."""
    table = Table("name", "value")
    table.add_row(text, Text(escaped(text), "red"))
    checks = checks_table(text, [{"name": text, "passed": True, "expected": text, "got": text}])
    sent = on_terminal(text, table, checks)
    console = Terminal(file=(file := io.StringIO()), force_terminal=True, width=200, color_system="standard")
    print_sequence(console, [1, 2], [Segment("content", 0, 2)], lambda ids: text)
    sent += file.getvalue()
    assert not ACTS.search(sent)
    sent.encode()
    assert "\\" in re.sub(r"\x1b\[[0-9;]*m", "", sent)


@pytest.mark.parametrize("text", MARKUP)
def test_markup_is_text(text: str) -> None:
    """A line, and a cell of a table, show what they were given."""
    table = Table("name")
    table.add_row(text)
    sent = on_terminal(text, table)
    assert re.sub(r"\x1b\[[0-9;]*m", "", sent).count(text) == 2


def test_ordinary_text_is_left_alone() -> None:
    """Letters of any script, tabs and line feeds stay."""
    text = "a\tb\nπ 中文 العربية 🙂 \\x1b"
    assert escaped(text) == text


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job over one prompt that holds all of it."""
    prompt = " ".join((*HOSTILE.values(), *MARKUP)).replace("\ud800", "")
    (tmp_path / "p.jsonl").write_text(json.dumps({"id": "r", "prompt": prompt}) + "\n")
    path = tmp_path / "job.json"
    path.write_text(
        json.dumps(
            {
                "name": "t",
                "model": {"tokenizer": str(STANDIN_MODEL)},
                "prompts": {"sources": [str(tmp_path / "p.jsonl")]},
                "servers": {"urls": ["http://127.0.0.1:1"]},
                "store": {"uri": str(tmp_path / "store")},
            }
        )
    )
    return path


def test_render_shows_a_hostile_prompt(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The verb whose work is to show prompts gives a terminal nothing but text."""
    assert cli.main(["render", str(job)], standalone_mode=False) == 0
    out = capsys.readouterr().out
    assert "[/THINK]" in out
    assert "\\x1b]52" in out
    assert not ACTS.search(out)


@pytest.mark.process
@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_a_stream_that_lacks_a_letter_gets_an_escape(tmp_path: Path, job: Path, encoding: str) -> None:
    """Whatever `PYTHONIOENCODING` says, a verb ends as it would elsewhere."""
    (tmp_path / "p.jsonl").write_text(json.dumps({"id": "r", "prompt": "Was ist π? 中文"}) + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "deployments.cli.main", "render", str(job)],
        capture_output=True,
        env={"PYTHONIOENCODING": encoding, "PYTHONPATH": str(ROOT), "PATH": ""},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"\\u03c0" in done.stdout


def test_an_error_that_quotes_a_file_is_escaped(
    tmp_path: Path, job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one line of a refusal holds a name from outside: it is shown, not obeyed."""
    from deployments.cli.cli import run_command

    (tmp_path / "p.jsonl").write_text(json.dumps({"id": "r", "\x1b]0;x\x07": "y"}) + "\n")
    monkeypatch.setattr(sys, "argv", ["rawseq", "render", str(job)])
    with pytest.raises(SystemExit) as end:
        run_command()
    assert end.value.code == SourceError.exit_status
    told = capsys.readouterr()
    assert not ACTS.search(told.err + told.out)
