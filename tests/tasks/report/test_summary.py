"""What a run says of itself adds up."""

import pytest

from deployments.cli.verbs.run import summary_lines
from tasks.report.summary import Summary, verdict_rows
from tasks.rows.verdicts import (
    BEHAVIOUR,
    CANONICAL,
    CUT,
    INTEGRITY,
    NEVER_SENT,
    Code,
    accepted_codes,
    kind_of,
)
from tasks.run.progress import Progress


def summary(**changed: object) -> Summary:
    """Return the summary of a good run, changed."""
    fields: dict[str, object] = {
        "job_id": "j-1",
        "store": "out/j-1",
        "batches_total": 2,
        "batches_committed": 2,
        "batches_skipped": 1,
        "failures": (),
        "rows": {"total": 10, "accepted": 9, "rejected": 1, "by_verdict": {"complete": 9, "nan": 1}},
        "tokens": {"prompt": 5, "output": 50},
        "accepted_floor": 0.9,
        "generated_rows": 4,
        "generated_tokens": 20,
        "seconds": 2.0,
    }
    return Summary(**(fields | changed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        pytest.param({}, "", id="good"),
        pytest.param({"accepted_floor": 0.95}, "accepted share 0.9000 is below", id="below-the-floor"),
        pytest.param(
            {"batches_committed": 1, "failures": ((1, "x"),)},
            "1 of 2 batches are not committed: 1",
            id="failed-batch",
        ),
        pytest.param({"batches_committed": 1}, "1 of 2 batches are not committed", id="not-reached"),
    ],
)
def test_a_run_is_complete_or_says_why_not(changed: dict[str, object], problem: str) -> None:
    """`state` and `problem` agree, and name what is missing."""
    answer = summary(**changed).as_json()
    assert (answer["state"] == "complete") is (problem == "")
    assert str(answer["problem"]).startswith(problem)


@pytest.mark.parametrize(
    ("changed", "first"),
    [
        pytest.param({"batches_skipped": 2, "generated_rows": 0}, "every batch was already", id="again"),
        pytest.param({"batches_skipped": 0, "generated_rows": 0}, "nothing generated: of", id="refused"),
        pytest.param({}, "4 rows generated in 2.0 s, 10 tokens/s", id="made"),
    ],
)
def test_the_first_line_says_what_this_run_did(changed: dict[str, object], first: str) -> None:
    """Nothing generated has two reasons: all was committed before, or no row may be sent."""
    assert summary_lines(summary(**changed))[0].startswith(first)


def test_duplicates_do_not_count_against_the_floor() -> None:
    """Rows that are left out on purpose, here two of twelve, fail no run."""
    rows = {
        "total": 12,
        "accepted": 9,
        "rejected": 3,
        "by_verdict": {"complete": 9, "duplicate": 2, "nan": 1},
    }
    assert summary(rows=rows).accepted_share == 0.9
    only = {"total": 2, "accepted": 0, "rejected": 2, "by_verdict": {"duplicate": 2}}
    assert summary(rows=only).problem == ""


def test_every_code_has_one_kind() -> None:
    """The five kinds tile the codes, and integrity is accepted under no policy."""
    kinds = [CANONICAL, CUT, INTEGRITY, BEHAVIOUR, NEVER_SENT]
    assert sum(len(kind) for kind in kinds) == len(Code)
    assert {kind_of(code) for code in Code} == {"canonical", "cut", "integrity", "behaviour", "never_sent"}
    for accept in ("canonical", "intact"):
        for on_length in ("keep", "reject"):
            good = accepted_codes(accept, on_length)
            assert not good & (INTEGRITY | NEVER_SENT)
            assert (good >= CUT) is (on_length == "keep")
            assert (good >= BEHAVIOUR) is (accept == "intact")


def test_the_closing_table_adds_up() -> None:
    """Rows of the table sum to the total and canonical codes come first."""
    table = verdict_rows({"nan": 1, "complete": 8, "cut_in_content": 1})
    assert [row["verdict"] for row in table] == ["complete", "cut_in_content", "nan"]
    assert sum(row["rows"] for row in table) == 10
    assert table[0]["share"] == "80.00%"


def test_progress_extrapolates_rows_from_opened_batches() -> None:
    """Two opened of four batches with 1.5 rows a record: the rest is estimated alike."""
    progress = Progress(records=40, batches=4)
    assert progress.estimate_seconds is None
    progress.opened(20, 30, 0)
    assert progress.rows_total == 60
    for _ in range(30):
        progress.generated(7)
        progress.made()
    assert (progress.rows_finished, progress.tokens, progress.share) == (30, 210, 0.5)
    assert progress.estimate_seconds is not None


def test_progress_counts_what_was_there_and_what_is_refused() -> None:
    """The share is over all rows; made rows, and the pace, are only this run's."""
    progress = Progress(records=10, batches=1)
    progress.opened(10, 10, 6)
    assert (progress.share, progress.estimate_seconds) == (0.6, None)
    progress.refused(1)
    progress.generated(5)
    progress.generated(4)  # the second round of one row
    progress.made()
    assert (progress.rows_finished, progress.rows_made, progress.tokens) == (8, 1, 9)
    assert "8 of about 10 rows" in progress.describe()
