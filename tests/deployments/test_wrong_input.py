"""A stranger's mistakes: each verb answers with one line that says where, what was expected and what came."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import click
import pytest

from deployments.cli.cli import run_command
from deployments.local.presets import STANDIN_MODEL
from tests.conftest import free_port
from tests.support.jobs import write_job, write_prompts

TOKENIZER = ("--tokenizer", str(STANDIN_MODEL))


@attrs.frozen
class Told:
    """What a command said: exit status, stdout, lines of stderr."""

    status: int
    out: str
    err: list[str]


Command = Callable[..., Told]


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    """Run the command line in this process, in the test's folder."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "error")  # as `main` sets it

    def run(*arguments: str) -> Told:
        monkeypatch.setattr(sys, "argv", ["rawseq", *arguments])
        with pytest.raises(SystemExit) as caught:
            run_command()
        out, err = capfd.readouterr()
        return Told(int(caught.value.code or 0), out, err.splitlines())

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param(["status", ""], 'STORE: uri: expected text, not nothing, got ""', id="status-empty"),
        pytest.param(["show", ""], "STORE: uri: expected text", id="show-empty"),
        pytest.param(["verify", ""], "STORE: uri: expected text", id="verify-empty"),
        pytest.param(["retry", ""], "STORE: uri: expected text", id="retry-empty"),
        pytest.param(["continue", "", "--max-new-tokens", "3"], "STORE: uri: expected", id="continue-empty"),
        pytest.param(["probe", ""], "STORE: uri: expected text", id="probe-empty"),
        pytest.param(["demo", "--store", ""], "--store: uri: expected text", id="demo-empty"),
        pytest.param(["run", ""], "cannot read the job file", id="run-empty"),
        pytest.param(["render", ""], "cannot read the job file", id="render-empty"),
        pytest.param(["check", "", *TOKENIZER], "FILE: expected a file or a folder", id="check-empty"),
        pytest.param(["check", "x.jsonl", "--tokenizer", ""], "options: tokenizer: expected", id="no-model"),
        pytest.param(["check", "x.jsonl"], "--tokenizer: expected a model name or folder", id="no-option"),
        pytest.param(
            ["check", "x", "--tokenizer", "a/b", "--trust-remote-code"], "--revision beside it", id="unpinned"
        ),
        pytest.param(["check", "x", *TOKENIZER, "--template-arg", "a"], "name=value", id="template-arg"),
        pytest.param(["check", "x", *TOKENIZER, "--template-arg", "a=["], "YAML value", id="template-yaml"),
        pytest.param(
            ["probe", "http://", *TOKENIZER], "URL: urls.0: expected http://host:port", id="url-bare"
        ),
        pytest.param(["probe", "http://a b", *TOKENIZER], "URL: urls.0: expected http://", id="url-space"),
        pytest.param(["status", "gs://bucket/x"], "expected a folder or s3://", id="unknown-scheme"),
        pytest.param(["retry", "out", "--batches", "9-7"], "ascending ranges", id="batches-reversed"),
        pytest.param(["retry", "out", "--batches", ""], "like 3,7-9", id="batches-empty"),
    ],
)
def test_a_wrong_argument_is_one_line(command: Command, arguments: list[str], expected: str) -> None:
    """Exit 2; one line on stderr; with `--json` the same as an object on stdout."""
    told = command(*arguments, "--json")
    assert told.status == 2
    assert len(told.err) == 1
    assert expected in told.err[0]
    assert told.err[0].endswith(json.loads(told.out)["error"]["message"])


@pytest.mark.parametrize("verb", ["status", "show", "verify", "retry", "probe"])
def test_a_secret_in_the_argument_is_not_repeated(command: Command, verb: str) -> None:
    """An address with credentials is refused before anything is asked."""
    told = command(verb, "s3://key:hun/ter2@bucket/x", "--json")
    assert told.status == 2
    assert "without credentials" in told.err[0]
    assert "ter2" not in told.out + told.err[0]


def test_usage_errors_are_json_too(command: Command) -> None:
    """A script that asked for JSON gets it, also when it left an argument out."""
    told = command("show", "--json")
    assert told.status == 2
    assert json.loads(told.out)["error"] == {"type": "UsageError", "message": "Missing argument 'STORE'."}


def test_user_text_is_never_markup(command: Command, tmp_path: Path) -> None:
    """Square brackets in prompts and names are shown as they are."""
    (tmp_path / "[b]").mkdir()
    prompts = tmp_path / "[b]" / "p.jsonl"
    prompts.write_text('{"id": "[red]a[/red]", "prompt": "[/nope] [bold]hi"}\n')
    job = write_job(tmp_path / "job.yaml", "http://127.0.0.1:1", prompts, tmp_path / "out")
    told = command("render", str(job))
    assert told.status == 0
    assert "p:[red]a[/red]#t0~s0" in told.out
    assert "[/nope] [bold]hi" in told.out


def test_check_names_the_line(command: Command, tmp_path: Path) -> None:
    """Blank lines count: the place is the one that an editor shows."""
    path = tmp_path / "theirs.jsonl"
    row = '{"prompt_ids": [5], "output_ids": [6]}\n'
    path.write_text(f"\n{row}\n  \n{row}")
    rows = [json.loads(line) for line in command("check", str(path), *TOKENIZER, "--json").out.splitlines()]
    assert [row.get("line") for row in rows] == [2, 5, None]
    assert rows[1]["row_id"] == f"{path}:5"
    path.write_text('\n{"prompt_ids": [5]}\n')
    told = command("check", str(path), *TOKENIZER)
    assert told.status == 1
    assert f"{path}:2: expected prompt_ids + output_ids" in told.err[0]


@pytest.mark.parametrize("as_json", [[], ["--json"]], ids=["text", "json"])
def test_an_absent_prefect_server_is_named(
    tmp_path: Path, rawseq_env: dict[str, str], as_json: list[str]
) -> None:
    """Exit 5 and one line: where it should be, and what to do."""
    url = f"http://127.0.0.1:{free_port()}/api"
    job = write_job(
        tmp_path / "job.yaml", "http://127.0.0.1:1", write_prompts(tmp_path / "p.jsonl", 2), tmp_path / "out"
    )
    done = subprocess.run(
        [sys.executable, "-m", "deployments.cli.main", "run", str(job), *as_json],
        cwd=tmp_path,
        env=rawseq_env | {"PREFECT_API_URL": url},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 5
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"SurroundingsError: Prefect server {url}: expected its API")
    if as_json:
        assert json.loads(done.stdout)["error"]["type"] == "SurroundingsError"


@pytest.mark.parametrize("module", ["click", "prefect.settings", "prefect.client"])
def test_ctrl_c_while_modules_load(tmp_path: Path, rawseq_env: dict[str, str], module: str) -> None:
    """From the first import on, Ctrl-C ends the command with 130 and one line."""
    job = write_job(
        tmp_path / "job.yaml", "http://127.0.0.1:1", write_prompts(tmp_path / "p.jsonl", 2), tmp_path / "out"
    )
    with subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "deployments.cli.main", "run", str(job)],
        cwd=tmp_path,
        env=rawseq_env,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.split("|")[-1].strip().startswith(f"{module}."):  # a part of it, so the rest still loads
                break
        process.send_signal(signal.SIGINT)
        rest = [line for line in process.stderr if line.strip() and not line.startswith("import time:")]
    assert process.returncode == 130, rest
    assert len(rest) == 1
    assert rest[0].startswith("interrupted")


def test_every_verb_has_a_help_that_says_what_it_does(command: Command) -> None:
    """`--help` of the program names every verb with a whole sentence; each option explains itself."""
    from deployments.cli.cli import cli

    overview = command("--help").out
    for name, verb in cli.commands.items():
        assert f"\n  {name} " in overview
        assert verb.get_short_help_str(200).endswith((".", "?"))
        assert all(option.help for option in verb.params if isinstance(option, click.Option))
    assert "..." not in overview.partition("Commands:")[2], "a verb's first sentence is cut off"


def test_output_to_a_pipe_is_not_cut(tmp_path: Path, rawseq_env: dict[str, str]) -> None:
    """Without a terminal no line is wrapped, however long it is."""
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(json.dumps({"id": "a", "prompt": "word " * 60}) + "\n")
    job = write_job(tmp_path / "job.yaml", "http://127.0.0.1:1", prompts, tmp_path / "out")
    env = {name: value for name, value in (os.environ | rawseq_env).items() if name != "COLUMNS"}
    done = subprocess.run(
        [sys.executable, "-m", "deployments.cli.main", "render", str(job)],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert any("word " * 60 in line for line in done.stdout.splitlines())
