"""The house: which way imports run, which modules are pure, how large a room may grow."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(
    path
    for folder in ("flows", "tasks", "deployments")
    for path in (ROOT / folder).rglob("*.py")
    if "train" not in path.parts
)

FILE_LINES = 280
"""Above the style page's 250: `sections.py` and `steps.py` each hold one noun, with much docstring."""

LARGER = {"tasks/steps.py": 340}
"""Every Prefect task in chain order is one file by design."""

FUNCTION_LINES = 40

BELOW = {
    "errors": 0,
    "verdicts": 0,
    "records": 1,
    "sections": 1,
    "prompts": 1,
    "store_section": 1,
    "spec": 1,
    "jobfile": 2,
}
"""Modules of `tasks` that every room may use, by level: each imports only lower or equal ones."""

ROOMS = ("tokens", "serving", "storage")

PURE = (
    "tasks/errors.py",
    "tasks/rows/verdicts.py",
    "tasks/rows/records.py",
    "tasks/job/places.py",
    "tasks/job/sections.py",
    "tasks/job/store_section.py",
    "tasks/job/spec.py",
    "tasks/sglang/protocol.py",
    "tasks/fleet/window.py",
    "tasks/dataset/shard.py",
    "tasks/export/example.py",
    "tasks/export/frequencies.py",
    "tasks/export/lengths.py",
    "tasks/export/masks.py",
    "tasks/export/order.py",
    "tasks/export/tally.py",
    "tasks/export/torch_file.py",
    "tasks/grammar/grammar.py",
)
"""Functions from values to values: no network, no files, no clock, no Prefect."""

IMPURE_IMPORTS = {"aiohttp", "asyncio", "boto3", "os", "pathlib", "prefect", "psutil", "socket", "time"}

ALLOWED_PREFECT = ("flows/", "deployments/", "tasks/steps.py")


def imports(path: Path) -> Iterator[str]:
    """Yield the dotted names that a file imports, those inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def relative(path: Path) -> str:
    """Return the path below the repository's root."""
    return path.relative_to(ROOT).as_posix()


def level(name: str) -> int:
    """Return a dotted module's floor: higher floors may import lower ones, never the reverse."""
    parts = name.split(".")
    if parts[0] == "deployments":
        return 6
    if parts[0] == "flows":
        return 5
    if parts[0] != "tasks" or len(parts) == 1:
        return -1
    if parts[1] in BELOW:
        return BELOW[parts[1]]
    if parts[1] in ROOMS or parts[1] == "report":
        return 3
    return 4


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_imports_point_down(path: Path) -> None:
    """Imports run deployments → flows → steps → rooms → records → errors; never room to room."""
    module = relative(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    room = module.split(".")[1] if module.startswith("tasks.") else ""
    for name in imports(path):
        assert level(name) <= level(module), f"{module} imports {name}, which lies above it"
        parts = name.split(".")
        if room in ROOMS and parts[0] == "tasks" and len(parts) > 1 and parts[1] in ROOMS:
            assert parts[1] == room, f"{module} imports {name}: rooms meet in the steps only"


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_prefect_stays_in_its_places(path: Path) -> None:
    """Prefect conducts: flows, steps and deployments import it, the embedded server never."""
    name = relative(path)
    uses = any(imported.split(".")[0] == "prefect" for imported in imports(path))
    allowed = name.startswith(ALLOWED_PREFECT) and not name.startswith("deployments/standin/")
    assert not uses or allowed, f"{name} imports prefect"


@pytest.mark.parametrize("name", PURE)
def test_pure_modules_do_no_io(name: str) -> None:
    """The modules that decide import nothing that touches network, files, processes or clocks."""
    found = {imported.split(".")[0] for imported in imports(ROOT / name)} & IMPURE_IMPORTS
    assert not found, f"{name} imports {sorted(found)}"


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_rooms_stay_small(path: Path) -> None:
    """A file holds one noun and a function fits a screen (style rule 2)."""
    text = path.read_text()
    ceiling = LARGER.get(relative(path), FILE_LINES)
    assert len(text.splitlines()) <= ceiling, f"{relative(path)} has {len(text.splitlines())} lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= FUNCTION_LINES, f"{relative(path)}:{node.lineno} {node.name} has {lines} lines"


@pytest.mark.parametrize("path", [p for p in SOURCES if p.parent.name == "flows"], ids=relative)
def test_flow_files_shadow_nothing(path: Path) -> None:
    """Prefect puts flows/ first on sys.path: none is named like a stdlib module."""
    assert path.stem == "__init__" or path.stem not in sys.stdlib_module_names
    assert not any(isinstance(node, ast.ClassDef) for node in ast.walk(ast.parse(path.read_text())))
