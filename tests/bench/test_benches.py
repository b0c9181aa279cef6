"""Every bench runs, at a size that measures nothing."""

import pytest

from tests.bench import __main__ as benches
from tests.bench.schedule import greedy


@pytest.mark.slow
def test_every_bench_runs_at_tiny_size() -> None:
    """All clients make all their rows, and the page has a line for each."""
    page = benches.report(benches.run(quick=True))
    for name in ("bare", "rawseq whole", "AsyncOpenAI", "SpecForge-like", "httpx", "barrier per 4 windows"):
        assert f"| {name}" in page, page
    assert "| two servers, 4:1" in page


@pytest.mark.parametrize(
    ("times", "speeds", "expected"),
    [
        pytest.param([3.0, 1.0, 1.0, 1.0], [1.0, 1.0], 3.0, id="short rows fill the other slot"),
        pytest.param([1.0, 1.0, 3.0], [1.0, 1.0], 4.0, id="a long row last"),
        pytest.param([1.0] * 5, [4.0, 1.0], 1.0, id="a fast slot takes four of five"),
    ],
)
def test_greedy_schedule(times: list[float], speeds: list[float], expected: float) -> None:
    """The next row goes to the slot that is free first; worked out by hand."""
    assert greedy(times, speeds) == pytest.approx(expected)
