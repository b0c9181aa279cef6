"""Faults that change what a /generate reply says: functions from one reply item to another."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deployments.standin.counters import Counters
from deployments.standin.faults import Switches

Item = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Known:
    """What the faults need to know of the model and the request."""

    prompt: list[int]
    think_ids: tuple[int, ...]
    end_id: int
    vocabulary: int
    limit: int  # most output ids of this request


def _with_ids(item: Item, ids: list[int]) -> Item:
    return {**item, "output_ids": ids}


def _with_meta(item: Item, **changes: Any) -> Item:
    return {**item, "meta_info": {**item["meta_info"], **changes}}


def _strip_think(item: Item, _: str, known: Known) -> Item:
    return _with_ids(item, [token for token in item["output_ids"] if token not in known.think_ids])


def _prompt_tail(item: Item, argument: str, known: Known) -> Item:
    return _with_ids(item, known.prompt[-int(argument or 5) :] + item["output_ids"])


def _no_output_ids(item: Item, _: str, __: Known) -> Item:
    return {key: value for key, value in item.items() if key != "output_ids"}


def _abort_200(item: Item, form: str, _: Known) -> Item:
    if form == "queue":
        meta = {
            "id": item["meta_info"]["id"],
            "finish_reason": {"type": "abort", "message": "Abort in waiting queue"},
            "completion_tokens": 0,
        }
        return {"text": "", "output_ids": [], "meta_info": meta}
    if form == "unavailable":
        reason = {
            "type": "abort",
            "message": "The request queue is full.",
            "status_code": 503,
            "err_type": None,
        }
        return _with_meta(_with_ids(item, []), finish_reason=reason, completion_tokens=0)
    half = item["output_ids"][: len(item["output_ids"]) // 2]
    reason = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    return _with_meta(_with_ids(item, half), finish_reason=reason, completion_tokens=len(half))


def _nan_stop(item: Item, _: str, known: Known) -> Item:
    ids = [*item["output_ids"][:-1], known.end_id]
    return _with_meta(_with_ids(item, ids), finish_reason={"type": "stop", "matched": "NaN happened"})


def _length_first(item: Item, _: str, known: Known) -> Item:
    ids, finish = item["output_ids"], item["meta_info"]["finish_reason"]
    if finish is None or finish.get("matched") != ids[-1] or len(ids) < known.limit:
        return item
    return _with_meta(item, finish_reason={"type": "length", "length": len(ids)})


def _empty_ids(item: Item, _: str, __: Known) -> Item:
    return _with_ids(item, [])


def _big_id(item: Item, _: str, known: Known) -> Item:
    return _with_ids(item, [known.vocabulary, *item["output_ids"][1:]])


def _wrong_prompt_tokens(item: Item, _: str, __: Known) -> Item:
    return _with_meta(item, prompt_tokens=item["meta_info"]["prompt_tokens"] - 1)


def _missing_optional_meta(item: Item, _: str, __: Known) -> Item:
    meta = item["meta_info"]
    return {**item, "meta_info": {"id": meta["id"], "finish_reason": meta["finish_reason"]}}


def _extra_meta(item: Item, _: str, __: Known) -> Item:
    return {
        **_with_meta(item, from_the_future={"a": [1, None]}, spec_accept_rate=0.5),
        "from_the_future": True,
    }


REPLIES: dict[str, Callable[[Item, str, Known], Item]] = {
    "strip_think": _strip_think,
    "prompt_tail": _prompt_tail,
    "no_output_ids": _no_output_ids,
    "abort_200": _abort_200,
    "nan_stop": _nan_stop,
    "length_first": _length_first,
    "empty_ids": _empty_ids,
    "big_id": _big_id,
    "wrong_prompt_tokens": _wrong_prompt_tokens,
    "missing_optional_meta": _missing_optional_meta,
    "extra_meta": _extra_meta,
}


def spoiled(item: Item, known: Known, switches: Switches, counters: Counters) -> Item:
    """A reply item after every fault of the table that acts now."""
    for name, fault in REPLIES.items():
        if "output_ids" not in item:
            break
        argument = switches.take(name, counters)
        if argument is not None:
            item = fault(item, argument, known)
    return item
