"""Job files: YAML or JSON → `JobSpec`, with errors that name file, line, field path, expected and got."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import orjson
import yaml
from pydantic import ValidationError

from tasks.errors import JobError
from tasks.spec import JobSpec, Section

SHOWN_CHARACTERS = 80
"""A value in an error message is cut here: a pasted megabyte stays out of logs."""


def load_job(path: Path, settings: Sequence[str] = ()) -> JobSpec:
    """Read a job file and apply `path=value` settings over it.

    Args:
        path: a `.yaml`, `.yml` or `.json` file.
        settings: e.g. `["batch.rows=256"]`; values are YAML.

    Raises:
        JobError: when the file is missing, malformed or has wrong fields; names all wrong fields at once.
    """
    return build_job(with_settings(_parse(path), settings), str(path))


def with_settings(data: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """Return `data` changed by `path=value` settings, in place.

    Raises:
        JobError: a setting is no `path=value`, or leads through something that is no section.
    """
    for setting in settings:
        _apply(data, setting)
    return data


def build_job(data: Mapping[str, Any], where: str) -> JobSpec:
    """Validate `data` as a `JobSpec`.

    Args:
        data: nested sections.
        where: what error messages call the origin, usually the file.

    Raises:
        JobError: lists every wrong field as `where: field.path: expected …, got …`.
    """
    try:
        return JobSpec.model_validate(data)
    except ValidationError as error:
        lines = [_describe(item, where) for item in error.errors(include_url=False)]
        raise JobError("\n".join(lines)) from None


def _parse(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise JobError(f"{path}: cannot read the job file: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise JobError(f"{path}: expected UTF-8 text, got byte {error.object[error.start]:#04x}") from None
    try:
        data = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        raise JobError(f"{place}: expected YAML or JSON, got: {error.problem}") from None
    except yaml.YAMLError as error:
        raise JobError(f"{path}: expected YAML or JSON, got: {error}") from None
    if not isinstance(data, dict):
        raise JobError(f"{path}: expected sections (name, model, prompts, …), got {_shown(data)}")
    return data


def _apply(data: dict[str, Any], setting: str) -> None:
    name, sign, text = setting.partition("=")
    parts = name.split(".")
    if not sign or not all(parts):
        raise JobError(f"--set {setting}: expected path=value, e.g. batch.rows=256")
    target: dict[str, Any] = data
    for part in parts[:-1]:
        inner = target.setdefault(part, {})
        if not isinstance(inner, dict):
            raise JobError(f"--set {setting}: {part} is {_shown(inner)}, not a section")
        target = inner
    try:
        target[parts[-1]] = yaml.safe_load(text)
    except yaml.YAMLError:
        raise JobError(f"--set {setting}: expected a YAML value, got {_shown(text)}") from None


def _describe(item: Any, where: str) -> str:
    field = ".".join(str(part) for part in item["loc"]) or "(job)"
    kind = item["type"]
    if kind == "missing":
        return f"{where}: {field}: required, got nothing"
    if kind == "extra_forbidden":
        return f"{where}: {field}: unknown field; expected {_siblings(item['loc'])}"
    message = item["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    return f"{where}: {field}: {message}, got {_shown(item['input'])}"


def _siblings(location: Sequence[Any]) -> str:
    section: Any = JobSpec
    for part in location[:-1]:
        section = _section_in(section if isinstance(part, int) else section.model_fields[part].annotation)
    return ", ".join(section.model_fields)


def _section_in(annotation: Any) -> Any:
    """Return the section that a field holds, also when it is one of the forms of a list's items."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for part in get_args(annotation) if (found := _section_in(part))), None)


def _shown(value: Any) -> str:
    try:
        text = orjson.dumps(value).decode()
    except TypeError:
        text = repr(value)
    text = re.sub(r"://[^\s/@\"']+@", "://***@", text)  # what stands before the @ of an address is a secret
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"
