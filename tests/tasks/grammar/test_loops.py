"""Loops: what repeats to the end of an answer, however short, and what only looks like it."""

import base64

import numpy as np
import pytest

from tasks.grammar.check import check_row, check_rows
from tasks.grammar.scan import LOOP_PERIOD, LOOP_SPAN, WHOLE_IDS, WHOLE_REPEATS
from tasks.rows.records import Completion, Ragged
from tasks.tokenizer.plain import encode_plain
from tasks.tokenizer.template import render
from tests.support.families import Load

LONGEST = LOOP_SPAN["length"] + LOOP_PERIOD
"""From here on the last ids alone show a loop."""


def verdict(load: Load, output: list[int], finish: str, thinking: bool = True) -> tuple[str, int]:
    """Return code and offset into the output of one row."""
    vocabulary, grammar = load("stand-in", thinking)
    prompt = render(vocabulary, [{"role": "user", "content": "Well?"}])
    ids = [*output, min(grammar.end_ids)] if finish == "stop" else output
    row = Completion("r", prompt, np.array(ids, np.int32), finish)
    found = check_row(grammar, row)
    return str(found.code), found.offset - prompt.size


@pytest.mark.parametrize("size", [WHOLE_IDS, 17, 40, 127, LONGEST - 1, LONGEST, 600])
def test_one_id_over_a_whole_cut_answer_is_a_loop_at_any_length(load: Load, size: int) -> None:
    """A sick server's answer is a loop, however short the cap is: fault 4.4."""
    assert verdict(load, [7] * size, "length")[0] == "repetition"


@pytest.mark.parametrize("period", [2, 3, 5, 8, 13])
def test_a_short_period_over_a_whole_cut_answer_is_a_loop(load: Load, period: int) -> None:
    """A phrase over and over to the cut, and no other id: from its first id on."""
    size = max(WHOLE_IDS, WHOLE_REPEATS * period) + 1
    ids = (list(range(100, 100 + period)) * (WHOLE_REPEATS + 9))[:size]
    assert verdict(load, ids, "length") == ("repetition", 0)


def test_a_loop_may_have_a_short_head(load: Load) -> None:
    """A few ids in front do not hide it; where it begins is told."""
    assert verdict(load, [50, 51, 52, *[7] * 40], "length") == ("repetition", 3)
    assert verdict(load, [*range(50, 70), *[7] * 40], "length")[0] == "cut_in_reasoning"


@pytest.mark.parametrize("size", [32, 100, 600])
def test_one_id_over_a_whole_ended_answer_is_a_loop(load: Load, size: int) -> None:
    """An answer that ended by itself after one id over and over."""
    assert verdict(load, [7] * size, "stop", thinking=False) == (
        "repetition",
        0 if size < 544 else size - 512,
    )


HONEST = {
    "laughter": "ha ha ha ha ha ha",
    "applause": "👏👏👏👏👏👏",
    "digits": "0000000000",
    "shout": "Nooooooooooo!!!!!!!!!!",
    "list": "- red\n- green\n- blue\n- red\n- green\n- blue\n",
    "numbered": "".join(f"{n}. Item\n" for n in range(1, 13)),
    "table": "| a | b | c | d |\n|---|---|---|---|\n" + "| 1 | 2 | 3 | 4 |\n" * 4,
    "zeros table": "| 0 | 0 |\n" * 5 + "| 1 | 0 |\n",
    "base64": base64.b64encode(bytes(24) + b"rawseq" + bytes(12)).decode(),
    "hex": "00 00 00 00 ff ff ff ff 00 00",
    "ruler": "Title\n" + "=" * 40 + "\nText.\n" + "-" * 60,
    "white space": "def f():\n" + " " * 24 + "return 1\n\n\n\n\n",
    "binary": "01101000 01101001 00100001 00000000",
    "song": "La la la la la, la la la la la, la la.",
    "code": "x = [0, 0, 0, 0, 0, 0, 0, 0]\ny = [1, 1, 1, 1]\n",
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_answers_are_no_loops(load: Load, name: str) -> None:
    """Ended by themselves, or cut wherever the cap falls after a head of ordinary text."""
    vocabulary, _ = load("stand-in", False)
    ids = encode_plain(vocabulary, HONEST[name])
    assert verdict(load, ids, "stop", thinking=False)[0] == "complete"
    head = encode_plain(vocabulary, "Of course! Here it is, as you asked for it:\n")
    for size in range(1, len(ids) + 1):
        assert verdict(load, [*head, *ids[:size]], "length", thinking=False)[0] == "cut_in_content"


@pytest.mark.parametrize("size", [1, 2, 3, 8, WHOLE_IDS - 1])
def test_few_equal_ids_are_no_loop(load: Load, size: int) -> None:
    """A cap of a few ids cuts an answer before anything can be said of it."""
    assert verdict(load, [7] * size, "length")[0] == "cut_in_reasoning"


def test_a_loop_that_an_end_id_cuts_at_the_cap_has_the_room_of_ended_answers(load: Load) -> None:
    """An end id as the last allowed id: the row ended, whatever the finish reason says."""
    vocabulary, grammar = load("stand-in", False)
    end = min(grammar.end_ids)
    few = [*encode_plain(vocabulary, "Zeros: "), *[7] * 200]
    assert verdict(load, few, "length", thinking=False)[0] == "repetition"
    assert verdict(load, [*few, end], "length", thinking=False)[0] == "complete"


def test_the_rules_of_earlier_versions_are_kept_for_what_they_judged(load: Load) -> None:
    """The audit asks them of stored rows: a short loop was cut, an end id on `length` was missing."""
    vocabulary, grammar = load("stand-in", True)
    prompt = render(vocabulary, [{"role": "user", "content": "Well?"}])
    whole = vocabulary.dialect.encode("a</think>b<|im_end|>")
    for ids, before, now in (
        ([7] * 100, "cut_in_reasoning", "repetition"),
        (whole, "end_missing", "complete"),
    ):
        row = Completion("r", prompt, np.array(ids, np.int32), "length")
        columns = Ragged.from_rows([prompt]), Ragged.from_rows([row.output_ids])
        codes = [check_rows(grammar, *columns, [row], earlier=earlier)[0].code for earlier in (True, False)]
        assert codes == [before, now]
