"""A row as the conversation that a text trainer wants: what was said before it, and its answer."""

import json
from collections.abc import Mapping
from typing import Any

from tasks.grammar.grammar import Grammar
from tasks.rows.records import Completion, Verdict
from tasks.tokenizer.messages import plain_message
from tasks.tokenizer.vocabulary import Vocabulary
from tasks.turns.calls import as_call, splice_results
from tasks.turns.conversations import Conversation
from tasks.turns.replies import answer_message

Answered = Mapping[str, tuple[Completion, Verdict]]


def told_messages(
    vocabulary: Vocabulary,
    grammar: Grammar,
    conversation: Conversation,
    turn: int,
    rows: Answered,
    match: str,
) -> list[dict[str, Any]]:
    """Return the messages up to and with the answer of generated turn number `turn`.

    Args:
        vocabulary: the job's.
        grammar: the job's.
        conversation: the row's.
        turn: position in the conversation's `turns`.
        rows: the finished rows of the conversation by id, this one and those of the turns before it.
        match: how recorded tool results find their calls (`tools.match`).

    Raises:
        RowError: a recorded message is not text.
    """
    answers = []
    for earlier, name in enumerate(conversation.row_ids[:turn]):
        answer = answer_message(vocabulary, grammar, *rows[name])
        calls = [as_call(call) for call in answer.get("tool_calls", ())]
        recorded, results = conversation.results_after(earlier)
        answers.append([answer, *((calls and splice_results(calls, recorded, results, match)) or [])])
    before, _ = conversation.history(turn, answers)
    last = answer_message(vocabulary, grammar, *rows[conversation.row_ids[turn]])
    return [plain_message(message, index) for index, message in enumerate([*before, last])]


def conversation_line(row_id: str, messages: list[dict[str, Any]], tools: Any) -> dict[str, Any]:
    """Return SpecForge's form: `id`, `conversations`, `tools`, and in every row and message the same keys.

    Tools and calls are JSON texts: their fields differ by row, and a loader infers one schema for a file.
    Other columns would reach the chat template as keyword arguments.
    """
    told = [
        {
            "role": message["role"],
            "content": message["content"],
            "reasoning_content": message.get("reasoning_content", ""),
            "tool_calls": json.dumps(message.get("tool_calls", []), ensure_ascii=False),
            "name": message.get("name", ""),
            "tool_call_id": message.get("tool_call_id", ""),
        }
        for message in messages
    ]
    return {"id": row_id, "conversations": told, "tools": json.dumps(list(tools), ensure_ascii=False)}
