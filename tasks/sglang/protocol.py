"""SGLang's wire shapes for token-level generation: payloads and replies (pure).

Read in SGLang 0.5.23 (`srt/entrypoints/http_server.py`, `srt/managers/io_struct.py`,
`srt/sampling/sampling_params.py`, `srt/managers/schedule_batch.py`); older versions' differences are in
`gates`, errors in `outcomes`.
"""

from typing import Any, Final

import attrs
import numpy as np
import orjson
from numpy.typing import NDArray

from tasks.errors import RowError
from tasks.rows.records import MAX_ID, Completion, Ids, Request
from tasks.rows.verdicts import Code
from tasks.sglang.gates import knows_seed
from tasks.sglang.idlist import split_ids
from tasks.sglang.outcomes import AttemptError, cut_body, is_page, read_error, short_value
from tasks.sglang.scoring import kept_logprobs

SAMPLING_DEFAULTS: Final[dict[str, Any]] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "min_new_tokens": 0,
    "n": 1,
    "ignore_eos": False,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": True,
    "no_stop_trim": True,
}
"""Sent where the job says nothing: `/generate` reads no defaults of the model, and merges the server's
`--preferred-sampling-params` under what is sent, so every key is sent. The last three touch text only."""

EXTRA_BYTES: Final = 2048
"""Bound of the unknown `meta_info` keys that are kept of one reply."""


@attrs.frozen(slots=True)
class Sent:
    """One attempt as it went out.

    Args:
        url: the server's base URL.
        version: the server's SGLang version.
        rid: the attempt's request id.
        latency_seconds: from send to the whole reply.
        finished_at: when the whole reply was there, seconds since the epoch.
    """

    url: str
    version: str
    rid: str
    latency_seconds: float = 0.0
    finished_at: float = 0.0


def build_payload(
    request: Request, sampling: dict[str, Any], rid: str, vocab_size: int, version: str = ""
) -> bytes:
    """Return the JSON body of `POST /generate` for one row.

    Args:
        request: the row.
        sampling: the job's resolved `sampling_params`; the row's own choices go over them.
        rid: fresh for every attempt, of fixed length: SGLang aborts by prefix.
        vocab_size: ids outside [0, vocab_size) are never sent: one kills a server (0.5.21 on).
        version: the server's; fields that it does not know are left out.

    Raises:
        RowError: `bad_record` when an id must not be sent.
    """
    check_ids(request.row_id, request.input_ids, vocab_size)
    params = SAMPLING_DEFAULTS | sampling | request.sampling
    params["max_new_tokens"] = request.max_new_tokens
    params.pop("seed", None)
    if knows_seed(version):
        params["sampling_seed"] = request.seed
    else:
        params.pop("sampling_seed", None)
    body = {"rid": rid, "input_ids": request.input_ids, "sampling_params": params, "stream": False}
    if request.logprobs:
        body |= {"return_logprob": True, "logprob_start_len": -1, "top_logprobs_num": 0}
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


def check_ids(row_id: str, ids: Ids, vocab_size: int) -> None:
    """Raise a `RowError` unless every id is within [0, vocab_size)."""
    if ids.view(np.uint32).max() >= vocab_size:  # a negative id is a huge one there
        bad = int(ids.min()) if ids.min() < 0 else int(ids.max())
        offset = int(np.flatnonzero(ids == bad)[0])
        raise RowError(
            Code.BAD_RECORD,
            f"{row_id}: expected prompt ids in [0, {vocab_size}), got {bad}: not sent",
            offset,
        )


def read_reply(request: Request, status: int, body: bytes, sent: Sent) -> Completion:
    """Return what a server answered for a row, verbatim.

    A reply that breaks an acceptance rule in a way that another attempt can mend (aborted, no ids, not JSON,
    another request's) is an `AttemptError`; all others are kept with their facts for the grammar to judge.

    Raises:
        AttemptError: try again.
        RowError: `prompt_too_long`, or `poison` for a request that the server refuses for good.
        SurroundingsError: the key is missing or wrong, or this is no SGLang server.
    """
    if status != 200:
        raise read_error(request.row_id, status, body, sent.url)
    where = f"{sent.url}: {request.row_id} (rid {sent.rid})"
    if is_page(body):
        raise AttemptError("cut", f"{where}: expected JSON, got a proxy's page: {cut_body(body)}")
    body, ids = split_ids(body)
    reply = _json_object(body, where)
    meta = reply.get("meta_info")
    if not isinstance(meta, dict):
        raise AttemptError("malformed", f"{where}: expected meta_info in the reply, got {cut_body(body)}")
    if meta.get("id") != sent.rid:
        raise AttemptError("malformed", f"{where}: got the reply of request {meta.get('id')!r}")
    finish = meta.get("finish_reason")
    finish = finish if isinstance(finish, dict) else {}
    kind = finish.get("type")
    if kind not in ("stop", "length"):
        raise AttemptError("aborted", f"{where}: expected finish stop or length, got {short_value(finish)}")
    matched = _whole(finish, "matched", where)
    output = _output_ids(reply.get("output_ids"), where) if ids is None else _narrow(ids, where)
    return Completion(
        row_id=request.row_id,
        input_ids=request.input_ids,
        output_ids=output,
        finish_reason=kind,
        matched_stop=matched,
        facts=_facts(meta, sent, where) | (kept_logprobs(meta, output) if request.logprobs else {}),
    )


def _json_object(body: bytes, where: str) -> dict[str, Any]:
    try:
        reply = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise AttemptError("malformed", f"{where}: expected JSON, got {error}: {cut_body(body)}") from None
    if not isinstance(reply, dict):
        raise AttemptError("malformed", f"{where}: expected one JSON object, got {cut_body(body)}")
    return reply


def _output_ids(values: Any, where: str) -> Ids:
    if not isinstance(values, list) or not values:
        raise AttemptError("no_output", f"{where}: expected output_ids, got {short_value(values)}")
    try:
        wide = np.array(values)
    except ValueError:  # nested lists of unequal length
        wide = np.zeros(0)
    if wide.dtype.kind != "i" or wide.ndim != 1:
        raise AttemptError(
            "malformed", f"{where}: expected output_ids to be integers, got {short_value(values)}"
        )
    return _narrow(wide, where)


def _narrow(wide: NDArray[Any], where: str) -> Ids:
    if wide.view(np.uint64).max() > MAX_ID:  # a negative id is a huge one there: one pass instead of two
        raise AttemptError("malformed", f"{where}: output_ids outside [0, {MAX_ID}]: {wide[:8]}")
    return wide.astype(np.int32)


def integrity_alarm(completion: Completion, vocab_size: int) -> str:
    """Return what shows that a server changed or lost ids, "" when nothing does: it must pass a fresh probe.

    The row is kept as it came; the grammar rejects it with its code.
    """
    facts, count = completion.facts, completion.output_ids.size
    if facts["completion_tokens"] not in (None, count):
        return f"the server counts {facts['completion_tokens']} output ids, {count} came"
    if facts["prompt_tokens"] not in (None, completion.input_ids.size):
        return f"the server counts {facts['prompt_tokens']} prompt ids, {completion.input_ids.size} were sent"
    if isinstance(matched := facts["finish_reason"].get("matched"), str):
        return f"the server stopped at {matched!r}, though no stop string was sent"
    last = int(completion.output_ids[-1])
    if completion.matched_stop not in (None, last):
        return f"the server stopped at {completion.matched_stop}, the last id is {last}"
    if (most := int(completion.output_ids.max())) >= vocab_size:
        return f"id {most} came from a vocabulary of {vocab_size}"
    return ""


_KNOWN_META: Final = frozenset(
    {
        "id",
        "finish_reason",
        "prompt_tokens",
        "completion_tokens",
        "cached_tokens",
        "weight_version",
        "num_retractions",
        "total_retractions",
        "hidden_states",
        "output_token_logprobs",
        "output_top_logprobs",
        "input_token_logprobs",
        "input_top_logprobs",
    }
)


def _facts(meta: dict[str, Any], sent: Sent, where: str) -> dict[str, Any]:
    return {
        "server": sent.url,
        "server_version": sent.version,
        "weight_version": str(meta.get("weight_version") or ""),
        "rid": sent.rid,
        "prompt_tokens": _whole(meta, "prompt_tokens", where),
        "completion_tokens": _whole(meta, "completion_tokens", where),
        "cached_tokens": _whole(meta, "cached_tokens", where),
        "num_retractions": _whole(
            meta, "num_retractions", where, "total_retractions"
        ),  # the second up to 0.5.9
        "finish_reason": meta["finish_reason"],
        "latency_seconds": round(sent.latency_seconds, 6),
        "finished_at": sent.finished_at,
        "extras": _extras(meta),
    }


def _whole(values: dict[str, Any], key: str, where: str, other: str = "") -> int | None:
    """Return a whole number of a reply, by its name or its other one; None when it is none.

    Raises:
        AttemptError: it does not fit the column that keeps it: another attempt may do better, a batch that
            holds it could never be written.
    """
    for name in (key, other):
        value = values.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            if abs(value) > MAX_ID:
                raise AttemptError("malformed", f"{where}: expected {name} in 32 bits, got {value}")
            return value
    return None


def _extras(meta: dict[str, Any]) -> dict[str, Any]:
    """Return the unknown `meta_info` keys, small ones first, as long as they fit `EXTRA_BYTES` together."""
    unknown = meta.keys() - _KNOWN_META
    sized = sorted((len(orjson.dumps(meta[key])), key) for key in unknown)
    kept, room = {}, EXTRA_BYTES
    for size, key in sized:
        room -= size + len(key)
        if room < 0:
            break
        kept[key] = meta[key]
    return kept
