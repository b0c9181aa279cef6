"""Job files: YAML or JSON → `JobSpec`, with errors that name file, line, field path, expected and got."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import orjson
import yaml
from pydantic import ValidationError

from tasks.errors import JobError
from tasks.job.redaction import redact
from tasks.job.spec import JobSpec, Section

SHOWN_CHARACTERS = 80
"""A value in an error message is cut here: a pasted megabyte stays out of logs."""

S = TypeVar("S", bound=Section)


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
    return build_section(JobSpec, data, where)


def build_section(kind: type[S], data: Mapping[str, Any], where: str) -> S:
    """Validate `data` as one section; see `build_job`.

    Raises:
        JobError: lists every wrong field, one a line.
    """
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        lines = [_describe(item, where, kind) for item in error.errors(include_url=False)]
        raise JobError("\n".join(lines)) from None


class _OneOfEachKey(yaml.SafeLoader):
    """YAML's safe loader that refuses a key given twice, where YAML's own takes the last without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            if (key.tag, key.value) in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value!r} is given twice", key.start_mark
                )
            seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


def _parse(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise JobError(f"{path}: cannot read the job file: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise JobError(f"{path}: expected UTF-8 text, got byte {error.object[error.start]:#04x}") from None
    try:
        data = yaml.load(text, _OneOfEachKey)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        raise JobError(f"{place}: expected YAML or JSON, got: {error.problem}") from None
    except yaml.YAMLError as error:
        raise JobError(f"{path}: expected YAML or JSON, got: {redact(str(error))}") from None
    if not isinstance(data, dict):
        raise JobError(f"{path}: expected sections (name, model, prompts, …), got {_shown(data)}")
    return data


def _apply(data: dict[str, Any], setting: str) -> None:
    name, sign, text = setting.partition("=")
    parts = name.split(".")
    shown = f"--set {redact(setting)}"
    if not sign or not all(parts):
        raise JobError(f"{shown}: expected path=value, e.g. batch.rows=256")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise JobError(f"{shown}: expected a YAML value, got {_shown(text)}") from None
    target: Any = data
    for depth, part in enumerate(parts[:-1]):
        if isinstance(target, dict):
            target.setdefault(part, {})
        target = target[_key(target, parts[:depth], part, shown)]
    target[_key(target, parts[:-1], parts[-1], shown)] = value


def _key(target: Any, path: Sequence[str], part: str, shown: str) -> Any:
    """Return what `part` means in `target`: a field of a section, or the number of an item in a list."""
    place = ".".join(path)
    if isinstance(target, dict):
        return part
    if not isinstance(target, list):
        raise JobError(f"{shown}: {place} is {_shown(target)}, not a section or a list")
    if not part.isdecimal() or int(part) >= len(target):
        numbers = f"0 to {len(target) - 1}" if target else "none: it is empty"
        raise JobError(f"{shown}: expected an item of {place} ({numbers}), got {part!r}")
    return int(part)


def _describe(item: Any, where: str, kind: type[Section]) -> str:
    field = ".".join(str(part) for part in item["loc"])
    place = f"{where}: {field}" if field else where
    if item["type"] == "missing":
        return f"{place}: required, got nothing"
    if item["type"] == "extra_forbidden":
        return f"{place}: unknown field; expected {_siblings(item['loc'], kind)}"
    message = item["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    message = message.replace("String should have at least 1 character", "expected text, not nothing")
    if isinstance(item["input"], dict) and item["type"] == "value_error":
        return f"{place}: {message}"  # fields that do not go together: the message names them
    return f"{place}: {message}, got {_shown(item['input'])}"


def _siblings(location: Sequence[Any], kind: type[Section]) -> str:
    section: Any = kind
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
    text = redact(text)
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"
