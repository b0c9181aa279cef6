"""A checked answer as the message that a client would hold, decoded from its segments."""

from itertools import pairwise
from typing import Any

import numpy as np

from tasks.grammar.grammar import Grammar
from tasks.rows.records import Completion, Verdict
from tasks.tokenizer.vocabulary import Vocabulary
from tasks.turns.calls import Call, read_calls


def answer_message(
    vocabulary: Vocabulary, grammar: Grammar, completion: Completion, verdict: Verdict
) -> dict[str, Any]:
    """Return the assistant message that a completion is.

    Text is decoded for the template only, the stored ids stay what they are. Where the family's template
    writes the line breaks around reasoning itself, they are taken off, as the models' own cards do.
    """
    content = _text(vocabulary, completion, verdict, "content")
    reasoning = _text(vocabulary, completion, verdict, "reasoning")
    if grammar.trim:
        reasoning = reasoning.strip("\n")
        content = content.strip("\n") if reasoning else content
    message: dict[str, Any] = {"role": "assistant", "content": content, "reasoning_content": reasoning}
    calls = answer_calls(vocabulary, completion, verdict)
    return {**message, "tool_calls": [call.as_message() for call in calls]} if calls else message


def answer_calls(vocabulary: Vocabulary, completion: Completion, verdict: Verdict) -> list[Call]:
    """Return the tool calls of a completion, read from its tool segments and the header in front of each.

    gpt-oss may name the function in the header: `assistant to=functions.look<|channel|>…`.
    """
    ids = np.concatenate([completion.input_ids, completion.output_ids])
    segments = verdict.segments
    parts = [
        ids[(before if before.kind in ("closer", "opener") else segment).start : segment.stop]
        for before, segment in pairwise(segments)
        if segment.kind == "tool_calls"
    ]
    return read_calls("".join(vocabulary.decode(part.tolist()) for part in parts))


def _text(vocabulary: Vocabulary, completion: Completion, verdict: Verdict, kind: str) -> str:
    ids = np.concatenate([completion.input_ids, completion.output_ids])
    parts = [ids[s.start : s.stop] for s in verdict.segments if s.kind == kind]
    return "".join(vocabulary.decode(part.tolist()) for part in parts)
