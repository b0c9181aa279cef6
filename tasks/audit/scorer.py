"""One row sent to one server to be scored."""

import uuid
from typing import Final

from tasks.rows.records import Request
from tasks.sglang.client import INFO_BYTES, ServerClient
from tasks.sglang.outcomes import AttemptError
from tasks.sglang.protocol import check_ids
from tasks.sglang.scoring import BYTES_PER_ENTRY, Scores, read_scores, score_payload

SCORE_SECONDS: Final = 300.0
"""Limit of one prefill with log probabilities, waiting included: as no row is given up before that."""


async def score_row(client: ServerClient, row: Request, start: int, top: int, vocab_size: int) -> Scores:
    """Have the ids `row.input_ids[start:]` scored beside the most likely ones; generates nothing.

    Args:
        client: of the server.
        row: prompt and output of a row, as a request.
        start: index of the first output id, at least 1.
        top: how many of the most likely ids are told at each place.
        vocab_size: ids outside [0, vocab_size) are never sent.

    Raises:
        AttemptError: this attempt came to nothing, or took longer than `SCORE_SECONDS`.
        RowError: the row cannot be sent, or is too long for this server.
        SurroundingsError: the key is missing or wrong.
    """
    check_ids(row.row_id, row.input_ids, vocab_size)
    rid = uuid.uuid4().hex
    body = score_payload(row.input_ids, start, top, rid)
    most_bytes = INFO_BYTES + BYTES_PER_ENTRY * (row.input_ids.size - start) * (top + 1)
    try:
        status, reply = await client.call("POST", "/generate", body, SCORE_SECONDS, most_bytes)
    except AttemptError:
        await client.abort(rid)
        raise
    client.check_allowed("/generate", status, reply)
    return read_scores(row.row_id, row.input_ids, start, status, reply, client.url)
