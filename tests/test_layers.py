"""The house: which folder may import which, no circles, which modules are pure, how large a room may grow."""

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(path for top in ("flows", "tasks", "deployments") for path in (ROOT / top).rglob("*.py"))

FILE_LINES = 350
FUNCTION_LINES = 40
FOLDER_FILES = 15

UNMERGED = {"tasks/export": 21, "tasks/run": 16, "deployments/standin": 32}
"""Files of folders whose merges are to come: they may become fewer, never more."""

ERRORS = "tasks/errors.py"
STEPS = "tasks/steps.py"

ROOMS: dict[str, tuple[str, ...]] = {
    "tasks/job": (),
    "tasks/store": ("job",),
    "tasks/rows": ("store",),
    "tasks/tokenizer": ("job", "rows"),
    "tasks/sglang": ("job", "rows"),
    "tasks/sglang/restart": ("job", "sglang"),
    "tasks/ledger": ("job", "rows", "store"),
    "tasks/grammar": ("rows", "tokenizer"),
    "tasks/prompts": ("job", "ledger", "rows", "store"),
    "tasks/fleet": ("rows", "sglang", "sglang/restart"),
    "tasks/turns": ("grammar", "job", "rows", "tokenizer"),
    "tasks/dataset": ("grammar", "job", "ledger", "rows", "store", "tokenizer", "turns"),
    "tasks/report": ("dataset", "job", "ledger", "rows", "store", "tokenizer"),
    "tasks/export": (
        *("dataset", "grammar", "job", "ledger", "prompts", "rows", "store", "tokenizer", "turns"),
    ),
    "tasks/audit": (
        *("dataset", "fleet", "grammar", "job", "ledger", "prompts", "rows", "sglang", "store", "turns"),
    ),
    "tasks/run": (
        *("dataset", "fleet", "grammar", "job", "ledger", "prompts", "report", "rows", "sglang"),
        *("sglang/restart", "store", "tokenizer", "turns"),
    ),
}
"""Room of `tasks/` → rooms that it may import, by their own names; all may import the errors.

`deployments/cli` counts its verbs as its own: it assembles them, and they use what it has for all of them.
"""

MAY_IMPORT: dict[str, set[str]] = {
    **{room: {ERRORS, *(f"tasks/{name}" for name in names)} for room, names in ROOMS.items()},
    STEPS: {
        ERRORS,
        *(f"tasks/{name}" for name in ["audit", "export", "fleet", "job", "ledger", "report", "rows", "run"]),
    },
    "flows": {
        ERRORS,
        STEPS,
        *(f"tasks/{name}" for name in ["audit", "export", "job", "report", "run", "store"]),
    },
    "deployments/standin": set(),
    "deployments/local": {"deployments/standin", "tasks/job", "tasks/store"},
    "deployments": set(),
    "deployments/cli": {
        *("deployments/local", "deployments/standin", "flows", STEPS),
        *(room for room in ROOMS if room not in ("tasks/prompts", "tasks/fleet", "tasks/sglang/restart")),
    },
}

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

ALLOWED_PREFECT = ("flows/", "deployments/", STEPS)


def relative(path: Path) -> str:
    """Return the path below the repository's root."""
    return path.relative_to(ROOT).as_posix()


def module_of(path: Path) -> str:
    """Return the dotted name of a source file."""
    return relative(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


MODULES = {module_of(path): path for path in SOURCES}


@lru_cache
def imports(path: Path) -> tuple[str, ...]:
    """Return the dotted names that a file imports: inside functions and under `TYPE_CHECKING` too."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            found += {
                name if (name := f"{module}.{alias.name}") in MODULES else module for alias in node.names
            }
    return tuple(found)


def own_imports(path: Path) -> set[str]:
    """Return the modules of this house that a file imports, itself left out."""
    return {name for name in imports(path) if name in MODULES} - {module_of(path)}


def room_of(path: Path) -> str:
    """Return the folder that a file counts for."""
    name = relative(path)
    if name in (ERRORS, STEPS):
        return name
    folder = relative(path.parent)
    return next(
        (room for room in ("deployments/cli", "deployments/standin") if folder.startswith(room)), folder
    )


def circle_in(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """Return one circle of a graph, its first node again at its end; [] when there is none."""
    done: set[str] = set()
    for start in graph:
        path: list[str] = []
        ahead = [iter((start,))]
        while ahead:
            node = next(ahead[-1], None)
            if node is None:
                ahead.pop()
                if path:
                    done.add(path.pop())
            elif node in path:
                return [*path[path.index(node) :], node]
            elif node not in done:
                path.append(node)
                ahead.append(iter(sorted(graph.get(node, ()))))
    return []


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_folders_import_what_they_may(path: Path) -> None:
    """Imports run down the table, wherever in a file they stand."""
    room = room_of(path)
    for name in own_imports(path):
        other = room_of(MODULES[name])
        assert other in (room, ERRORS, *MAY_IMPORT[room]), f"{relative(path)} imports {name}"


def test_no_circle_of_files() -> None:
    """No file imports another that in the end imports it."""
    graph = {name: own_imports(path) for name, path in MODULES.items()}
    assert not circle_in(graph), " → ".join(circle_in(graph))


def test_no_circle_of_folders() -> None:
    """Neither does a folder; and the table is as free of circles as what it allows."""
    graph: dict[str, set[str]] = {}
    for path in SOURCES:
        others = {room_of(MODULES[name]) for name in own_imports(path)}
        graph.setdefault(room_of(path), set()).update(others - {room_of(path)})
    assert not circle_in(graph), " → ".join(circle_in(graph))
    assert not circle_in(MAY_IMPORT), " → ".join(circle_in(MAY_IMPORT))


@pytest.mark.parametrize(
    ("graph", "circle"),
    [
        pytest.param({"a": "b", "b": "c", "c": ""}, "", id="chain"),
        pytest.param({"a": "bc", "b": "c", "c": ""}, "", id="two-ways"),
        pytest.param({"a": "b", "b": "a"}, "aba", id="pair"),
        pytest.param({"x": "a", "a": "b", "b": "c", "c": "a"}, "abca", id="three-behind-one"),
        pytest.param({"a": "", "b": "b"}, "bb", id="itself"),
    ],
)
def test_circles_are_seen(graph: dict[str, str], circle: str) -> None:
    """The search finds a circle wherever it is, and none where there is none."""
    assert circle_in(graph) == list(circle)


def test_hidden_imports_count(tmp_path: Path) -> None:
    """An import inside a function or under `TYPE_CHECKING` is one."""
    file = tmp_path / "hidden.py"
    file.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from tasks.run import run\n"
        "def later() -> None:\n    import tasks.steps\n"
    )
    assert {"tasks.run.run", "tasks.steps"} <= set(imports(file))


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
def test_files_and_functions_stay_small(path: Path) -> None:
    """A file holds one noun and a function fits a screen (style rule 2)."""
    text = path.read_text()
    assert len(text.splitlines()) <= FILE_LINES, f"{relative(path)} has {len(text.splitlines())} lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= FUNCTION_LINES, f"{relative(path)}:{node.lineno} {node.name} has {lines} lines"


@pytest.mark.parametrize("folder", sorted({path.parent for path in SOURCES}), ids=relative)
def test_folders_stay_small(folder: Path) -> None:
    """A folder's list of files is seen at a glance; `__init__` says its subject and is not counted."""
    files = [path for path in folder.glob("*.py") if path.stem != "__init__"]
    assert len(files) <= UNMERGED.get(relative(folder), FOLDER_FILES), (
        f"{relative(folder)}: {len(files)} files"
    )


@pytest.mark.parametrize("path", [p for p in SOURCES if p.parent.name == "flows"], ids=relative)
def test_flow_files_shadow_nothing(path: Path) -> None:
    """Prefect puts flows/ first on sys.path: none is named like a stdlib module."""
    assert path.stem == "__init__" or path.stem not in sys.stdlib_module_names
    assert not any(isinstance(node, ast.ClassDef) for node in ast.walk(ast.parse(path.read_text())))


SENDS = ("os.chdir", "sys.path.insert", "sys.path.append", "monkeypatch.chdir", "monkeypatch.syspath_prepend")


def places_in(path: Path) -> Iterator[tuple[int, str]]:
    """Yield where a file says in which folder a process runs or modules are looked for, and how."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.keyword) and node.arg in ("cwd", "working_dir"):
            yield node.value.lineno, ast.unparse(node.value)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in SENDS:
            yield node.lineno, ast.unparse(node)


def test_no_process_is_sent_into_tasks() -> None:
    """Rooms are named `sglang`, `store`, `report`: on `sys.path` they would stand for packages."""
    places = [
        f"{relative(path)}:{line}: {place}"
        for path in (*SOURCES, *(ROOT / "tests").rglob("*.py"))
        for line, place in places_in(path)
    ]
    assert len(places) > 20
    assert not [place for place in places if "tasks" in place.split(": ", 1)[1]]


@pytest.mark.parametrize("name", ["pyproject.toml", "Makefile", ".ci/run", "deployments/prefect.yaml"])
def test_no_setting_sends_a_process_into_tasks(name: str) -> None:
    """Neither do the files that say how things are run."""
    found = re.findall(
        r".*(?:cd|WORKDIR|PYTHONPATH|pythonpath|directory)\W+(?:\./)?tasks\b.*", (ROOT / name).read_text()
    )
    assert not found


def test_modules_are_not_looked_for_in_tasks() -> None:
    """This process, as every one that it starts, finds the rooms below `tasks.` only."""
    inside = [entry for entry in sys.path if Path(entry or ".").resolve().is_relative_to(ROOT / "tasks")]
    assert not inside
