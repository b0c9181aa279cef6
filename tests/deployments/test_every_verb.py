"""Every verb over hostile prompts and names: on a terminal, in a pipe, to streams that lack letters."""

import io
import json
import logging
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import TextIO

import attrs
import pytest

from deployments.cli.cli import run_command
from deployments.cli.console import TABLE_COLUMNS, checks_table, output
from deployments.cli.flow import EscapedLines
from deployments.local.presets import STANDIN_MODEL
from deployments.standin.launch import Standin, start_standin
from tests.deployments.test_terminal import ACTS, HOSTILE, MARKUP
from tests.support.jobs import write_job

TEXT = " ".join((*HOSTILE.values(), *MARKUP)).replace("\ud800", "")


RECORDS = [{"id": f"r{n}\x1b]0;x\x07", "prompt": f"{n} {TEXT}", "topic": TEXT} for n in range(3)] + [
    {"id": "refused [/THINK]", "prompt": f"end </think> {TEXT}"}
]


@attrs.frozen
class Made:
    """A dataset of hostile prompts: its folder, its server, what a terminal was sent while it was made."""

    folder: Path
    server: Standin
    sent: str

    def words(self, verb: str) -> list[str]:
        """Return a verb with its arguments."""
        store, tokenizer = str(self.folder / "store"), ["--tokenizer", str(STANDIN_MODEL)]
        return {
            "render": ["render", str(self.folder / "job.yaml")],
            "show": ["show", store],
            "show-ids": ["show", store, "--ids"],
            "show-rejected": ["show", store, "--rejected"],
            "status": ["status", store],
            "verify": ["verify", store],
            "check": ["check", str(self.folder / "rows.jsonl"), *tokenizer],
            "publish": ["publish", store],
            "export": ["export", store, "--to", "parquet", "--out", str(self.folder / "export")],
            "probe": ["probe", self.server.url, *tokenizer],
            "probe-store": ["probe", store],
            "error": ["status", str(self.folder / TEXT.replace("/", ""))],
        }[verb]


VERBS = (
    *("render", "show", "show-ids", "show-rejected", "status", "verify", "check", "publish", "export"),
    *("probe", "probe-store", "error"),
)


@contextmanager
def terminal() -> Iterator[tuple[str, list[bytes]]]:
    """A terminal: yields its path and the list that in the end holds what it was sent."""
    ours, theirs = pty.openpty()
    sent: list[bytes] = []

    def read() -> None:
        with suppress(OSError):  # how Linux says that nobody has it open any more
            while data := os.read(ours, 65536):
                sent.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield os.ttyname(theirs), sent
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, rawseq_env: dict[str, str]) -> Iterator[Made]:
    """One run, on a terminal, over prompts, ids and a file name that would act upon it."""
    folder = tmp_path_factory.mktemp("hostile")
    file = folder / "p\x1b]0;x\x07[THINK].jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    rows = [{"row_id": TEXT, "prompt_ids": [1, 2], "output_ids": [3, 4]}]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    standin = start_standin(["--enable-deterministic-inference"], folder / "standin.log")
    try:
        job = write_job(folder / "job.yaml", standin.url, file, folder / "store")
        with terminal() as (path, sent), open(path, "w") as tty:
            command = [sys.executable, "-m", "deployments.cli.main", "run", str(job)]
            done = subprocess.run(
                command, env=rawseq_env, cwd=folder, stdout=tty, stderr=tty, timeout=240, check=False
            )
        told = b"".join(sent).decode()
        assert done.returncode == 0, told
        yield Made(folder, standin, told)
    finally:
        standin.end()


def main(words: list[str]) -> None:
    """Run a verb as the command does, whatever its exit status."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["rawseq", *words])
        with pytest.raises(SystemExit):
            run_command()


def into(stream: TextIO, words: list[str]) -> None:
    """Run a verb with both its streams replaced."""
    with redirect_stdout(stream), redirect_stderr(stream):
        main(words)
    stream.flush()


CURSOR = re.compile(r"\x1b\[(?:\?25[lh]|[0-9]*[AKG]|2K|1A)|\r")
"""What a moving bar sends of its own."""


def test_a_run_gives_a_terminal_text_only(made: Made) -> None:
    """The bar's own cursor moves left out, in bar, log lines and closing report."""
    assert "rows by verdict" in made.sent
    assert not ACTS.search(CURSOR.sub("", made.sent))


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_gives_a_terminal_text_only(made: Made, verb: str) -> None:
    """Whatever stands in prompts, ids, outputs and names."""
    with terminal() as (path, sent), open(path, "w", errors="backslashreplace") as stream:
        into(stream, made.words(verb))
    told = b"".join(sent).decode().replace("\r\n", "\n")
    assert told
    assert not ACTS.search(told)
    if verb in ("render", "show", "error"):
        assert "\\x1b]52" in told


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_degrades(made: Made, verb: str, encoding: str) -> None:
    """A file that lacks letters: no traceback, escapes in their place."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding, errors="backslashreplace")  # as `main` sets it
    into(stream, made.words(verb))
    told = raw.getvalue().decode(encoding)
    assert told
    assert "Traceback" not in told


@pytest.mark.parametrize("verb", VERBS)
def test_tables_in_a_pipe_are_narrow(
    made: Made, verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No line of a table is wider than 120 columns; other lines stay whole."""
    monkeypatch.delenv("COLUMNS", raising=False)
    main(made.words(verb))
    lines = capsys.readouterr().out.splitlines()
    assert not [line for line in lines if line[:1] in "┏┃┡│└" and len(line) > TABLE_COLUMNS]


def test_a_wide_table_is_folded(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a long value is there, over several lines; a line beside the table is whole."""
    monkeypatch.delenv("COLUMNS", raising=False)
    check = {"name": "x", "passed": True, "expected": "word " * 80, "got": "g" * 400}
    output().print(checks_table("title", [check]))
    output().print("line " * 80, soft_wrap=True)
    *table, line = capsys.readouterr().out.splitlines()
    assert max(map(len, table)) == TABLE_COLUMNS
    assert "".join(table).count("g") == 401  # one of the head
    assert len(line) == 400


def test_a_log_line_is_escaped() -> None:
    """Prefect's console shows what a server said, with nothing in it that would act upon a terminal."""
    record = logging.LogRecord("prefect", logging.ERROR, "", 0, "%s", (TEXT,), None)
    assert not ACTS.search(EscapedLines(None).format(record))
