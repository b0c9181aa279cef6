"""The verdict codes: one frozen enum that receipts, policy, `retry --rejected`, reports and JSON share.

It lies below the rooms (and is re-exported by `tasks.grammar.grammar`) because serving and storage speak
these words too and may not import `tokens`.
"""

from enum import StrEnum
from typing import Final


class Code(StrEnum):
    """What became of a row. The value is the string that is stored."""

    # canonical: the full structure
    COMPLETE = "complete"
    COMPLETE_TOOLS = "complete_tools"
    # cut by length: intact, but unfinished
    CUT_IN_REASONING = "cut_in_reasoning"
    CUT_IN_CONTENT = "cut_in_content"
    CUT_IN_TOOLS = "cut_in_tools"
    # integrity: what came is not what the model made, or cannot be proved so
    COUNT_MISMATCH = "count_mismatch"
    PROMPT_MISMATCH = "prompt_mismatch"
    ID_OUT_OF_VOCABULARY = "id_out_of_vocabulary"
    END_MISSING = "end_missing"
    ABORTED = "aborted"
    NAN = "nan"
    NO_OUTPUT = "no_output"
    # behaviour: intact, but not the canonical form
    CLOSER_MISSING = "closer_missing"
    CLOSER_REPEATED = "closer_repeated"
    OPENER_IN_OUTPUT = "opener_in_output"
    OPENER_MISSING = "opener_missing"
    TOOLS_UNBALANCED = "tools_unbalanced"
    TURN_START_INSIDE = "turn_start_inside"
    AFTER_END = "after_end"
    CONTROL_UNEXPECTED = "control_unexpected"
    REASONING_EMPTY = "reasoning_empty"
    CONTENT_EMPTY = "content_empty"
    REPETITION = "repetition"
    TAIL_ECHO = "tail_echo"
    # never sent
    BAD_RECORD = "bad_record"
    DUPLICATE = "duplicate"
    PROMPT_TOO_LONG = "prompt_too_long"
    CONTROL_TOKEN_IN_TEXT = "control_token_in_text"
    TEMPLATE_ERROR = "template_error"
    UNREACHED = "unreached"
    POISON = "poison"


CANONICAL: Final = frozenset({Code.COMPLETE, Code.COMPLETE_TOOLS})
CUT: Final = frozenset({Code.CUT_IN_REASONING, Code.CUT_IN_CONTENT, Code.CUT_IN_TOOLS})
INTEGRITY: Final = frozenset(
    {
        Code.COUNT_MISMATCH,
        Code.PROMPT_MISMATCH,
        Code.ID_OUT_OF_VOCABULARY,
        Code.END_MISSING,
        Code.ABORTED,
        Code.NAN,
        Code.NO_OUTPUT,
    }
)
NEVER_SENT: Final = frozenset(
    {
        Code.BAD_RECORD,
        Code.DUPLICATE,
        Code.PROMPT_TOO_LONG,
        Code.CONTROL_TOKEN_IN_TEXT,
        Code.TEMPLATE_ERROR,
        Code.UNREACHED,
        Code.POISON,
    }
)
BEHAVIOUR: Final = frozenset(Code) - CANONICAL - CUT - INTEGRITY - NEVER_SENT


def kind_of(code: Code) -> str:
    """Return the code's kind: canonical, cut, integrity, behaviour or never_sent (decisions 1)."""
    for kind, codes in (
        ("canonical", CANONICAL),
        ("cut", CUT),
        ("integrity", INTEGRITY),
        ("never_sent", NEVER_SENT),
    ):
        if code in codes:
            return kind
    return "behaviour"


def accepted_codes(accept: str, on_length: str) -> frozenset[Code]:
    """Return the codes whose rows count as accepted under a policy.

    Args:
        accept: `canonical` (full structure) or `intact` (behaviour codes are accepted and marked too).
        on_length: `reject` leaves cut rows out; `keep` and `continue` accept them, marked by their code.
    """
    codes = CANONICAL if accept == "canonical" else CANONICAL | BEHAVIOUR
    return codes if on_length == "reject" else codes | CUT
