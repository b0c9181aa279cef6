"""The README's outputs are what the commands print. `python tests/test_readme.py` writes them anew.

A console block is `$ command` and its output. Numbers, ids, addresses and borders may differ between runs;
words may not.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from deployments.local.demo import DemoHome
from deployments.local.presets import STANDIN_MODEL
from deployments.standin.launch import running_standin_sync

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BLOCK = re.compile(r"```console\n\$ (?P<command>[^\n]+)\n(?P<output>.*?)```", re.DOTALL)
RAN = ("make demo", "rawseq show", "rawseq run", "rawseq verify", "rawseq publish")
SERVER = "http://127.0.0.1:30000"
"""What the README calls a server: an embedded one on a free port takes its place."""

WIDTH = "110"


def blocks() -> list[tuple[str, str]]:
    """Return (command, output) of the README's console blocks that this test runs."""
    found = [(m["command"], m["output"]) for m in BLOCK.finditer(README.read_text())]
    return [(command, output) for command, output in found if command.startswith(RAN)]


def run(command: str, folder: Path, env: dict[str, str], url: str) -> str:
    """Run one command of the README in `folder` and return what a person reads: stderr's errors, stdout."""
    words = command.replace("make demo", "rawseq demo").replace(SERVER, url).split()[1:]
    done = subprocess.run(
        [sys.executable, "-m", "deployments.cli.main", *words],
        cwd=folder,
        env=env | {"COLUMNS": WIDTH},
        capture_output=True,
        text=True,
        timeout=240,
    )
    if done.returncode:
        error = done.stderr.splitlines()[-1] if done.stderr else ""
        return f"{error}\n"
    return "\n".join(line.rstrip() for line in done.stdout.replace(url, SERVER).splitlines()).rstrip() + "\n"


def prepare(folder: Path) -> None:
    """Write the job and the prompts of the refusal: the second record has no prompt."""
    (folder / "prompts.jsonl").write_text('{"id": "a", "prompt": "hi"}\n{"id": "b", "promt": "hi"}\n')
    job = {
        "name": "refused",
        "model": {"tokenizer": str(STANDIN_MODEL)},
        "prompts": {"sources": ["prompts.jsonl"]},
        "servers": {"urls": ["http://127.0.0.1:30000"]},
        "store": {"uri": "out"},
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job))


def words(text: str) -> str:
    """Return a text without what may differ between runs: numbers, ids, verdict rows, borders, spacing.

    Which verdicts occur may differ with the processor: the last bits of a float32 product decide a draw.
    """
    text = "\n".join(line for line in text.splitlines() if not line.startswith("│"))
    text = re.sub(r"[━┃┏┓┗┛┡┩╇┳┻│└┘┴├┤┬┼─]", " ", text)
    text = re.sub(r"demo-[0-9a-f]{12}", "demo-ID", text)
    text = re.sub(r"[\d,.]*\d", "N", text)
    return re.sub(r"\s+", " ", text).strip()


def test_the_readme_shows_what_its_commands_print(tmp_path: Path, rawseq_env: dict[str, str]) -> None:
    """Demo, demo again, a sequence, a refusal and an audit read as the README says, but for numbers."""
    prepare(tmp_path)
    try:
        with running_standin_sync([], tmp_path / "standin.log") as url:
            for command, output in blocks():
                assert words(run(command, tmp_path, rawseq_env, url)) == words(output), command
    finally:
        DemoHome(tmp_path).end_standins()


def test_every_verb_is_in_the_readme() -> None:
    """The table of verbs names each command that the program has."""
    from deployments.cli.cli import cli

    text = README.read_text()
    assert not [name for name in cli.commands if f"`rawseq {name}" not in text]


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#]+)\)", README.read_text()))
def test_links_lead_somewhere(target: str) -> None:
    """Every link of the README is a file or folder of this repository."""
    assert (ROOT / target).exists()


def write(folder: Path) -> None:
    """Write the outputs into the README."""
    prepare(folder)
    text = README.read_text()
    with running_standin_sync([], folder / "standin.log") as url:
        outputs = [(command, run(command, folder, dict(os.environ), url)) for command, _ in blocks()]
    pieces = iter(outputs)

    def filled(match: re.Match[str]) -> str:
        if not match["command"].startswith(RAN):
            return match[0]
        command, output = next(pieces)
        return f"```console\n$ {command}\n{output}```"

    README.write_text(BLOCK.sub(filled, text))


if __name__ == "__main__":
    import tempfile

    sys.path.insert(0, str(ROOT))
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
