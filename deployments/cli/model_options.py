"""The options by which a verb is told whose tokens these are."""

from collections.abc import Callable, Sequence
from typing import Any

import click
import yaml

from tasks.errors import JobError
from tasks.job.jobfile import build_section
from tasks.job.spec import ModelSpec, runs_unpinned_code

_OPTIONS = (
    click.option("--tokenizer", help="Model name or folder with the tokenizer."),
    click.option("--revision", help="Commit or tag of the model repository."),
    click.option("--trust-remote-code", is_flag=True, help="Run the tokenizer's own code."),
    click.option(
        "--template-arg", "template_args", multiple=True, metavar="K=V", help="Argument of the template."
    ),
)


def model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb `--tokenizer`, `--revision`, `--trust-remote-code` and `--template-arg`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def model_spec(
    tokenizer: str | None, revision: str | None, trust_remote_code: bool, template_args: Sequence[str]
) -> ModelSpec:
    """Return the model section that the options say.

    Raises:
        JobError: no `--tokenizer`, code of a repository without its revision, or a `--template-arg` that is
            no `name=value`.
    """
    if tokenizer is None:
        raise JobError("--tokenizer: expected a model name or folder, got nothing")
    given = {
        "tokenizer": tokenizer,
        "revision": revision,
        "trust_remote_code": trust_remote_code,
        "template_args": dict(_argument(text) for text in template_args),
    }
    model = build_section(ModelSpec, given, "options")
    if runs_unpinned_code(model):
        raise JobError("--trust-remote-code: expected --revision beside it: it runs the repository's code")
    return model


def _argument(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise JobError(f"--template-arg {text}: expected name=value, e.g. thinking=true")
    try:
        return name, yaml.safe_load(value)
    except yaml.YAMLError:
        raise JobError(f"--template-arg {text}: expected a YAML value, got {value!r}") from None
