"""What re-scoring did not look at, in words."""

import pytest

from tasks.dataset.scored import Scored

EXCHANGED = "an id exchanged for a likely one, a model much like the one that is asked"


@pytest.mark.parametrize(
    ("scored", "sentence"),
    [
        pytest.param(
            Scored(9),
            "0 of 9 rows scored, so not seen: ids changed with every digest made to fit, another model's ids",
            id="nothing scored",
        ),
        pytest.param(
            Scored(9, 9, 9), "9 of 9 rows scored, 9 of them held to kept log probabilities", id="all held"
        ),
        pytest.param(
            Scored(9, 9), "9 of 9 rows scored, 0 of them held to kept log probabilities", id="all greedy"
        ),
        pytest.param(
            Scored(9, 4, 1),
            "4 of 9 rows scored, 1 of them held to kept log probabilities, so not seen: "
            "anything in the ids of the 5 that were not scored",
            id="a part, exactly",
        ),
        pytest.param(
            Scored(9, 4, 1, 3, (0.6, 1.0)),
            "4 of 9 rows scored, 1 of them held to kept log probabilities, so not seen: "
            f"at temperature 0.6, 1, in the 3 without kept log probabilities, {EXCHANGED}; "
            "anything in the ids of the 5 that were not scored",
            id="a part, as far as a temperature allows",
        ),
    ],
)
def test_the_sentence_covers_what_was_not_looked_at(scored: Scored, sentence: str) -> None:
    """Every row that is not exactly known is in it, with the reason."""
    assert scored.sentence() == sentence
    assert scored.as_json() == {"rows": scored.rows, "of": 9, "held": scored.held, "sentence": sentence}
