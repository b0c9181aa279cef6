"""Which tests run one after the other in one worker, and which `make check` leaves out.

Tests of a file stay together, and those of one model family.
A family's tokenizer takes a second to load and up to 150 MB: whoever has it open makes all of its tests, in
whichever file they stand, and lets go of it.
"""

import re

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.support.model_folders import GENUINE
from tests.support.sketches import SKETCHES

FAMILY_TESTS = ("tests/corruption/", "tests/tasks/grammar/", "tests/tasks/tokenizer/", "tests/tasks/turns/")
FAMILIES = sorted({"kimi", *GENUINE, *SKETCHES}, key=len, reverse=True)
"""Those that take long to load, the longest name first: `qwen3.5` is no `qwen3`."""

_FAMILY = re.compile(rf"[\[-]({'|'.join(map(re.escape, FAMILIES))})(?=[\]-])")


def scope_of(nodeid: str) -> str:
    """Return what a test is run together with: its family, else its file."""
    path = nodeid.split("::", 1)[0]
    found = _FAMILY.search(nodeid) if path.startswith(FAMILY_TESTS) else None
    return f"family {found[1]}" if found else path


WAITING = (
    "tests/flows/",
    "tests/bench/",
    "tests/compatibility/",
    "tests/deployments/test_",
    "tests/test_readme",
)
"""Tests that wait for whole runs: begun last, one of them would keep the other workers waiting at the end."""


def in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests that wait long first, then all others, each family's together at the end."""

    def place(item: pytest.Item) -> tuple[int, str]:
        scope = scope_of(item.nodeid)
        if scope.startswith("family "):
            return 2, scope
        return (0 if scope.startswith(WAITING) else 1), ""

    return sorted(items, key=place)


PROCESS_FIXTURES = frozenset(
    {
        *(
            "nursery",
            "on_s3",
            "postgres_api",
            "prefect_api",
            "rawseq",
            "seaweed",
            "server",
            "shared",
            "standin",
        ),
        *("standin_url", "start", "template"),
    }
)
"""Each starts a process, or asks for one that does."""


def mark(item: pytest.Item) -> None:
    """Mark a test that starts a process, and one that opens a large family's tokenizer."""
    fixtures = getattr(item, "fixturenames", ())
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    over_s3 = any(isinstance(value, str) and value.startswith("s3") for value in parameters)
    if PROCESS_FIXTURES.intersection(fixtures) or ("store" in fixtures and over_s3):
        item.add_marker("process")
    if scope_of(item.nodeid).startswith("family "):
        item.add_marker("family")


class ByScope(LoadScopeScheduling):
    """Hands out tests scope by scope, in the order in which they were collected."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        config.option.loadscopereorder = False  # by the number of tests, which says little of their time
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)
