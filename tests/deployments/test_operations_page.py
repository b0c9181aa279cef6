"""`deployments/README.md`: what it names exists, its links lead somewhere, its commands are understood."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml

import deployments
from deployments.cli.cli import cli
from deployments.local.server_settings import SERVER_SETTINGS
from deployments.register import PREFECT_FILE
from deployments.register import main as register

FOLDER = Path(deployments.__file__).resolve().parent
PAGE = (FOLDER / "README.md").read_text()
RAWSEQ = sorted(
    set(re.findall(r"`(rawseq [a-z]+[^`]*)`", PAGE)) | set(re.findall(r"\$ (rawseq [^\n]+)", PAGE))
)
REGISTER = re.findall(r"python -m deployments\.register[^`\n]*", PAGE)


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#]+)\)", PAGE))
def test_links_lead_somewhere(target: str) -> None:
    """Every link is a file of this folder."""
    assert (FOLDER / target).exists()


def test_every_deployment_is_on_the_page() -> None:
    """The page names each deployment, schedule and limit that prefect.yaml declares."""
    declared = yaml.safe_load(PREFECT_FILE.read_text())["deployments"]
    assert not [each["name"] for each in declared if f"`{each['name']}`" not in PAGE]


@pytest.mark.parametrize("line", RAWSEQ)
def test_a_rawseq_command_is_understood(line: str) -> None:
    """Verb and options exist: the command line is read, not run."""
    words = shlex.split(line)[1:]
    command = cli.commands[words[0]]
    with click.Context(command) as context:
        command.parse_args(context, words[1:])


@pytest.mark.parametrize("line", REGISTER)
def test_a_register_command_is_understood(line: str) -> None:
    """Its options exist."""
    with click.Context(register) as context:
        register.parse_args(context, shlex.split(line)[3:])


@pytest.mark.process
def test_the_worker_command_is_prefects() -> None:
    """`prefect worker start` knows the options that the page gives it."""
    help_text = subprocess.run(
        [sys.executable, "-m", "prefect", "worker", "start", "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    assert "prefect worker start --pool rawseq --type process" in PAGE
    assert "--pool" in help_text
    assert "--type" in help_text


def test_the_page_starts_a_server_as_up_does() -> None:
    """The settings with which `rawseq up` starts Prefect, name by name."""
    assert not [
        f"{name}={value}" for name, value in SERVER_SETTINGS.items() if f"export {name}={value}\n" not in PAGE
    ]
