"""A row cut by length goes on from its ids, and is one sequence that the checker holds to all counts."""

import numpy as np
import pytest

from tasks.grammar.check import check_row
from tasks.job.spec import SamplingSpec
from tasks.rows.lengths import LengthLimits
from tasks.rows.records import Completion, Request, as_ids
from tasks.turns.continuation import continuation_of, merge_rounds
from tasks.turns.conversations import plan_conversations
from tasks.turns.sampling import resolve_sampling
from tests.support.answers import answer
from tests.support.families import Load
from tests.support.talk import Talk
from tests.tasks.turns.test_turns import Record, user

LIMITS = LengthLimits(4096, 4090, 100_000)


def served(request: Request, ids: list[int], finish: str) -> Completion:
    """Return what a server answers, with its own counts."""
    facts = {
        "prompt_tokens": request.input_ids.size,
        "completion_tokens": len(ids),
        "finish_reason": {
            "type": finish,
            **({"length": len(ids)} if finish == "length" else {"matched": ids[-1]}),
        },
        "rid": f"rid-{request.input_ids.size}",
    }
    matched = ids[-1] if finish == "stop" else None
    return Completion(request.row_id, request.input_ids, as_ids(ids), finish, matched, facts=facts)


@pytest.mark.parametrize("cuts", [[3], [1, 2, 9], [5, 6, 7]], ids=str)
@pytest.mark.parametrize("family", ["stand-in", "qwen3", "glm-4.7-flash", "gpt-oss"])
def test_rounds_give_the_row_that_one_round_gives(family: str, cuts: list[int], load: Load) -> None:
    """Wherever a correct answer is cut, its rounds merge into the same ids and the verdict complete."""
    vocabulary, grammar = load(family, True)
    resolved = resolve_sampling(SamplingSpec(max_new_tokens=50), vocabulary, grammar)
    record = Record((user("a"), user("b")))
    turns = Talk(plan_conversations([record], "each", 1), vocabulary, grammar, resolved, LIMITS, rounds=4)
    first = request = turns.open({})[0][0]
    whole = vocabulary.dialect.encode(answer(grammar))
    start = 0
    for cut in cuts:
        again = turns.settle(served(request, whole[start:cut], "length"))
        assert isinstance(again, Request)
        assert again.input_ids.tolist() == [*first.input_ids.tolist(), *whole[:cut]]
        assert again.seed not in (first.seed, request.seed)
        request, start = again, cut
    row = turns.settle(served(request, whole[start:], "stop"))
    assert isinstance(row, Completion)
    assert (row.input_ids.tolist(), row.output_ids.tolist()) == (first.input_ids.tolist(), whole)
    assert check_row(grammar, row).code == "complete"
    assert row.facts["continuations"] == len(cuts)
    assert [r["output_ids"] for r in row.facts["rounds"]] == np.diff([0, *cuts, len(whole)]).tolist()
    assert turns.follow(row)[0] is not None


def test_rounds_end(load: Load) -> None:
    """After the last round a row that is still cut is kept as cut, with all its ids."""
    vocabulary, grammar = load("stand-in", True)
    resolved = resolve_sampling(SamplingSpec(max_new_tokens=50), vocabulary, grammar)
    turns = Talk(
        plan_conversations([Record((user("a"),))], "each", 1), vocabulary, grammar, resolved, LIMITS, rounds=1
    )
    request = turns.open({})[0][0]
    ids = vocabulary.dialect.encode("Well, well, well. Let me see")
    again = turns.settle(served(request, ids, "length"))
    assert isinstance(again, Request)
    row = turns.settle(served(again, ids, "length"))
    assert isinstance(row, Completion)
    assert row.output_ids.tolist() == ids * 2
    assert check_row(grammar, row).code == "cut_in_reasoning"


def test_a_lost_round_leaves_the_row_as_it_was(load: Load) -> None:
    """A continuation that no server can make does not cost what was there."""
    vocabulary, grammar = load("stand-in", True)
    resolved = resolve_sampling(SamplingSpec(), vocabulary, grammar)
    turns = Talk(
        plan_conversations([Record((user("a"),))], "each", 1), vocabulary, grammar, resolved, LIMITS, rounds=2
    )
    request = turns.open({})[0][0]
    ids = vocabulary.dialect.encode("Well, well")
    turns.settle(served(request, ids, "length"))
    empty = np.zeros(0, np.int32)
    row = turns.settle(Completion(request.row_id, empty, empty, "unsent", code="poison", detail="x"))
    assert isinstance(row, Completion)
    assert row.output_ids.tolist() == ids


def test_no_room_means_no_continuation() -> None:
    """A row at the context's end, or one that stopped, is not continued."""
    ids = as_ids(range(90))
    cut = Completion("r", ids, as_ids([1]), "length")
    assert continuation_of(cut, 0, 10, LengthLimits(98, 92, None)) is not None
    assert continuation_of(cut, 0, 10, LengthLimits(96, 90, None)) is None
    assert continuation_of(Completion("r", ids, as_ids([1]), "stop"), 0, 10, LIMITS) is None


def test_rounds_that_do_not_fit_together_are_refused() -> None:
    """A second round on other ids is never glued to the first."""
    before = Completion("r", as_ids([1]), as_ids([2]), "length")
    with pytest.raises(ValueError, match="not asked with the ids"):
        merge_rounds(before, Completion("r", as_ids([1, 3]), as_ids([4]), "stop"))


def test_a_wrong_count_in_any_round_is_seen(load: Load) -> None:
    """The merged row is held to the sum of the server's counts."""
    vocabulary, grammar = load("stand-in", True)
    prompt = as_ids([*vocabulary.dialect.encode("x"), *grammar.default.ids.tolist()])
    whole = vocabulary.dialect.encode(answer(grammar))
    request = Request("r", prompt, 5, 0)
    before = served(request, whole[:4], "length")
    again = continuation_of(before, 0, 50, LIMITS)
    assert again is not None
    after = served(again, whole[4:], "stop")
    assert check_row(grammar, merge_rounds(before, after)).code == "complete"
    after.facts["prompt_tokens"] -= 1
    assert check_row(grammar, merge_rounds(before, after)).code == "count_mismatch"


def test_a_row_whose_end_is_its_last_allowed_id_is_not_continued(load: Load) -> None:
    """It is complete, though SGLang up to 0.5.16 says `length`: nothing is put behind its end."""
    vocabulary, grammar = load("stand-in", True)
    resolved = resolve_sampling(SamplingSpec(max_new_tokens=50), vocabulary, grammar)
    record = Record((user("a"), user("b")))
    turns = Talk(plan_conversations([record], "each", 1), vocabulary, grammar, resolved, LIMITS, rounds=4)
    request = turns.open({})[0][0]
    whole = vocabulary.dialect.encode(answer(grammar))
    row = turns.settle(served(request, whole, "length"))
    assert isinstance(row, Completion)
    assert row.output_ids.tolist() == whole
    assert check_row(grammar, row).code == "complete"
    assert turns.follow(row)[0] is not None
    cut = turns.settle(served(request, whole[:5], "length"))
    assert isinstance(cut, Request)
    merged = turns.settle(served(cut, whole[5:], "length"))
    assert isinstance(merged, Completion)
    assert (merged.output_ids.tolist(), check_row(grammar, merged).code) == (whole, "complete")
