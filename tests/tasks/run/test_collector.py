"""Collections of cyclic garbage: seldom inside, as before outside, whoever leaves first."""

import gc
from contextlib import ExitStack

import pytest

from tasks.run.collector import YOUNG_OBJECTS, seldom_collected


def test_what_exists_is_left_out_of_collections_until_the_end() -> None:
    """Objects of before are frozen inside and free again behind."""
    usual = gc.get_threshold()
    with seldom_collected():
        assert gc.get_freeze_count() > 1000
        assert gc.get_threshold() == (YOUNG_OBJECTS, *usual[1:])
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == usual


def test_cyclic_garbage_made_inside_is_still_found() -> None:
    """A program that makes cycles all the same does not grow for ever."""
    found: list[int] = []

    def note(phase: str, facts: dict[str, int]) -> None:
        if phase == "stop":
            found.append(facts["collected"])

    gc.callbacks.append(note)
    try:
        with seldom_collected():
            found.clear()
            for _ in range(2 * YOUNG_OBJECTS):
                cycle: list[object] = []
                cycle.append(cycle)
    finally:
        gc.callbacks.remove(note)
    assert sum(found) >= YOUNG_OBJECTS


@pytest.mark.parametrize("first", [0, 1], ids=["outer first", "inner first"])
def test_two_runs_in_one_process_leave_it_as_it_was(first: int) -> None:
    """Runs that overlap may end in either order."""
    usual = gc.get_threshold()
    stacks = [ExitStack(), ExitStack()]
    for stack in stacks:
        stack.enter_context(seldom_collected())
    stacks.pop(first).close()
    stacks.pop().close()
    assert gc.get_threshold() == usual
