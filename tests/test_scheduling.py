"""Which tests stay together in one worker."""

import pytest

from tests.support.scheduling import scope_of

GRAMMAR = "tests/tasks/grammar/test_families.py"


@pytest.mark.parametrize(
    ("nodeid", "scope"),
    [
        pytest.param(f"{GRAMMAR}::test_a[qwen3-on]", "family qwen3", id="first"),
        pytest.param("tests/tasks/tokenizer/test_guard.py::test_b[on-qwen3]", "family qwen3", id="last"),
        pytest.param(f"{GRAMMAR}::test_a[glm-5.1-user]", "family glm-5.1", id="a-longer-name"),
        pytest.param(
            f"{GRAMMAR}::test_a[qwen3-thinking-2507-on]", "family qwen3-thinking-2507", id="longest"
        ),
        pytest.param(f"{GRAMMAR}::test_a[stand-in]", GRAMMAR, id="a-small-one"),
        pytest.param(f"{GRAMMAR}::test_kimi", GRAMMAR, id="no-parameter"),
        pytest.param("tests/flows/test_kill.py::test_a[qwen3]", "tests/flows/test_kill.py", id="elsewhere"),
    ],
)
def test_scopes(nodeid: str, scope: str) -> None:
    """A test of a large family goes with its family, wherever its name stands; all others with their file."""
    assert scope_of(nodeid) == scope
