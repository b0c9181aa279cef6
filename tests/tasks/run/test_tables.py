"""The live tables stay small, whatever a run does."""

import json

import pytest

from deployments.cli.verbs.retry import batch_numbers
from tasks.run.progress import Progress
from tasks.run.tables import LAST, SHOWN, BatchBook
from tasks.store.commands import number_ranges


def test_the_batch_table_is_bounded() -> None:
    """A thousand batches of each kind: failed ones first, at most 110 rows, at most 30 kB for the server."""
    book = BatchBook()
    for number in range(4000):
        if number % 4 == 3:
            book.failed(number, f"{number:06d} [0,1000)", "x" * 5000)
        else:
            book.opened(number, f"{number:06d} [0,1000)", 1000, range(number % 1000))
        if number % 4 == 1:
            book.committed(number)
        if number % 4 == 2:
            book.left(number)
    table = book.table()
    expected = ["failed"] * SHOWN + ["generating"] * SHOWN + ["committed"] * LAST
    assert [row["state"] for row in table] == expected
    assert len(json.dumps(table)) < 30_000
    assert table[0]["batch"] == "000003 [0,1000)"
    assert table[-LAST]["batch"] == "003997 [0,1000)"  # the newest first
    assert table[SHOWN + 1]["rows"] == "4 of 1000"


def test_a_batch_goes_through_its_steps() -> None:
    """The row says what is being done, and how many rows the journal holds by now."""
    book, journal = BatchBook(), ["a"]
    book.opened(0, "000000 [0,2)", 2, journal)
    journal.append("b")
    book.goes_to(0, "checking")
    (row,) = book.table()
    assert (row["state"], row["rows"]) == ("checking", "2 of 2")


def test_batches_of_other_runs_count_whole() -> None:
    """A run that hands ranges out counts what its receipts say."""
    progress = Progress(records=30, batches=3)
    progress.took(10, 14, 14, 1400)
    assert (progress.rows_finished, progress.rows_total, progress.tokens) == (14, 42, 1400)
    assert (progress.batches_committed, progress.share) == (1, pytest.approx(1 / 3))


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        pytest.param([3], "3", id="one"),
        pytest.param([3, 7, 8, 9], "3,7-9", id="as the command's help says"),
        pytest.param([0, 1, 2, 5, 6], "0-2,5-6", id="two ranges"),
    ],
)
def test_the_shown_command_names_the_batches(numbers: list[int], text: str) -> None:
    """What the failed table says is what `retry --batches` reads."""
    assert number_ranges(numbers) == text
    assert batch_numbers(text) == numbers
