"""From what is said so far to the next request of a conversation: a function of values, for any process."""

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from tasks.errors import RowError
from tasks.grammar.check import check_row
from tasks.grammar.grammar import Grammar
from tasks.rows.lengths import LengthLimits
from tasks.rows.records import Completion, Request
from tasks.rows.verdicts import CANONICAL, Code
from tasks.tokenizer.template import render
from tasks.tokenizer.vocabulary import Vocabulary
from tasks.turns.calls import as_call, splice_results
from tasks.turns.conversations import Conversation
from tasks.turns.mix import Mix, choose_mix
from tasks.turns.replies import answer_message
from tasks.turns.sampling import ResolvedSampling, keeps_logprobs, row_cap, row_seed

_NO_IDS = np.zeros(0, np.int32)

Answer = list[dict[str, Any]]
"""What the model said in one turn, and behind it the tool results that were spliced in."""


@attrs.frozen(slots=True, eq=False)
class TurnRules:
    """What the rows of one batch have in common beside vocabulary and grammar; small, and fit to be sent.

    Args:
        resolved: every sampling field that is sent.
        limits: the lengths that every server accepts.
        policy: for text that spells a control token: `refuse` or `as_text`.
        match: which recorded tool result answers which regenerated call: `position`, `name`, `name_args`.
        mixes: ways of drawing rows, chosen by hash; empty: one way.
        logprobs_share: share of rows whose log probabilities are kept, chosen by hash.
    """

    resolved: ResolvedSampling
    limits: LengthLimits
    policy: str = "refuse"
    match: str = "name_args"
    mixes: tuple[Mix, ...] = ()
    logprobs_share: float = 0.0

    def mix_of(self, conversation: Conversation) -> Mix | None:
        """Return how the rows of a conversation are drawn; None without a mixture."""
        return choose_mix(self.mixes, self.resolved.seed, f"{conversation.name}~s{conversation.sample}")

    def cap_of(self, conversation: Conversation) -> int:
        """Return how many ids a row of it may have, before the context is looked at."""
        mix = self.mix_of(conversation)
        cap = self.resolved.max_new_tokens
        return cap if mix is None else int(mix.sampling.get("max_new_tokens", cap))

    def sampling_of(self, conversation: Conversation) -> dict[str, Any]:
        """Return the sampling fields of its rows that differ from the job's."""
        mix = self.mix_of(conversation)
        given = {} if mix is None else mix.sampling
        return {name: value for name, value in given.items() if name != "max_new_tokens"}


@attrs.frozen(slots=True, eq=False)
class Work:
    """A conversation to be taken one request further.

    Args:
        conversation: which.
        answers: of its first turns, in order, as an earlier step took them.
        finished: completions of the turns behind those, in order.
    """

    conversation: Conversation
    answers: tuple[Answer, ...] = ()
    finished: tuple[Completion, ...] = ()


@attrs.frozen(slots=True, eq=False)
class Step:
    """Where a `Work` led.

    Args:
        answers: of all turns taken so far.
        request: of the next turn; None when none follows.
        unsent: rows that nobody can make, with their reason.
    """

    answers: tuple[Answer, ...] = ()
    request: Request | None = None
    unsent: tuple[Completion, ...] = ()


def next_step(vocabulary: Vocabulary, grammar: Grammar, rules: TurnRules, work: Work) -> Step:
    """Take the finished turns of a conversation as history and render the prompt of the turn behind them.

    A conversation ends on a turn that is cut or has an integrity or behaviour fault: its later turns become
    `unreached`. A turn that cannot be rendered gets its code, and the ones after it `unreached` too.
    """
    conversation, answers = work.conversation, list(work.answers)
    if conversation.error:
        names = conversation.row_ids
        return Step(unsent=tuple(_unsent(name, conversation.code, conversation.error) for name in names))
    for completion in work.finished:
        turn = len(answers)
        if turn + 1 == len(conversation.turns):
            return Step(tuple(answers))
        answer = _taken(vocabulary, grammar, rules, conversation, turn, completion)
        if isinstance(answer, str):
            return Step(tuple(answers), None, _unreached(conversation, turn + 1, answer))
        answers.append(answer)
    return _request(vocabulary, rules, conversation, answers)


def _taken(
    vocabulary: Vocabulary,
    grammar: Grammar,
    rules: TurnRules,
    conversation: Conversation,
    turn: int,
    completion: Completion,
) -> Answer | str:
    """Return a finished turn as history, or why the conversation ends with it."""
    name = completion.row_id
    verdict = check_row(grammar, completion)
    if verdict.code not in CANONICAL:
        return f"{name} is {verdict.code}"
    answer = answer_message(vocabulary, grammar, completion, verdict)
    recorded, results = conversation.results_after(turn)
    calls = [as_call(call) for call in answer.get("tool_calls", ())]
    if not calls:
        return f"{name} calls no tool, but tool results are recorded next" if results else [answer]
    spliced = splice_results(calls, recorded, results, rules.match)
    if not spliced:
        return f"{name} makes calls to which no recorded result fits (tools.match: {rules.match})"
    return [answer, *spliced]


def _request(
    vocabulary: Vocabulary, rules: TurnRules, conversation: Conversation, answers: Sequence[Answer]
) -> Step:
    turn = len(answers)
    name, ids = conversation.row_ids[turn], _NO_IDS
    mix = rules.mix_of(conversation)
    args = None if mix is None else {**vocabulary.template_args, **mix.template_args}
    try:
        messages, own = conversation.history(turn, answers)
        ids = render(vocabulary, messages, conversation.tools, rules.policy, own=own, args=args)
        cap = row_cap(rules.limits, rules.cap_of(conversation), ids.size)
    except RowError as error:
        row = Completion(
            name, ids, _NO_IDS, "unsent", code=error.code, code_offset=error.offset, detail=error.message
        )
        unreached = _unreached(conversation, turn + 1, f"{name} is {error.code}")
        return Step(tuple(answers), None, (row, *unreached))
    request = Request(
        row_id=name,
        input_ids=ids,
        max_new_tokens=cap,
        seed=row_seed(rules.resolved.seed, name),
        turn=conversation.turns[turn],
        sample=conversation.sample,
        affinity=conversation.name,
        sampling=rules.sampling_of(conversation),
        logprobs=keeps_logprobs(rules.resolved.seed, name, rules.logprobs_share),
    )
    return Step(tuple(answers), request)


def _unreached(conversation: Conversation, start: int, why: str) -> tuple[Completion, ...]:
    return tuple(_unsent(name, Code.UNREACHED, why) for name in conversation.row_ids[start:])


def _unsent(name: str, code: Code, detail: str) -> Completion:
    return Completion(name, _NO_IDS, _NO_IDS, "unsent", code=code, detail=detail)
