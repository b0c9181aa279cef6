"""The bench of the checker runs, at a tiny size."""

from tests.bench.check_tokens import measure


def test_the_bench_runs() -> None:
    """`tests/bench/check_tokens.py` measures what it says, on rows that are all complete."""
    measured = measure(rows=20, length=64, rounds=1)
    assert measured["rows"] == 20
    assert measured["ids_per_second"] > 0
