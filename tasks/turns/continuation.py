"""A row that was cut by length, taken up where it stopped: prompt and partial ids go back, with more room."""

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

from tasks.errors import RowError
from tasks.rows.lengths import LengthLimits
from tasks.rows.records import Completion, Request
from tasks.turns.sampling import row_cap, row_seed


def continuation_of(
    completion: Completion, job_seed: int, cap: int, limits: LengthLimits, affinity: str = ""
) -> Request | None:
    """Return the request that takes up a cut row; None when it was not cut, or no room is left.

    The seed is a hash of the job's seed, the row id and the ids that are there already, so that a round draws
    noise of its own, and the same noise whenever it is asked again.

    Args:
        completion: the row so far: its `input_ids` are the prompt, its `output_ids` all that came.
        job_seed: of the job.
        cap: ids that this round may add.
        limits: of the fleet.
        affinity: rows with equal affinity prefer one server.
    """
    if completion.finish_reason != "length":
        return None
    ids = np.concatenate([completion.input_ids, completion.output_ids])
    try:
        room = row_cap(limits, cap, ids.size)
    except RowError:
        return None
    return Request(
        row_id=completion.row_id,
        input_ids=ids,
        max_new_tokens=room,
        seed=row_seed(job_seed, f"{completion.row_id}+{completion.output_ids.size}"),
        affinity=affinity,
    )


def merge_rounds(before: Completion, after: Completion) -> Completion:
    """Return one completion of a cut row and what continued it: one sequence, its rounds on record.

    The counts that the server gave for each round are added up, so that the checker holds the merged row to
    them as it holds a row of one round.

    Raises:
        ValueError: when `after` was not asked with exactly the ids of `before`.
    """
    so_far = np.concatenate([before.input_ids, before.output_ids])
    if before.row_id != after.row_id or not np.array_equal(so_far, after.input_ids):
        raise ValueError(f"{after.row_id}: this round was not asked with the ids of the round before it")
    rounds = [*before.facts.get("rounds", [_round(before)]), _round(after)]
    facts = {
        **after.facts,
        "prompt_tokens": before.facts.get("prompt_tokens"),
        "completion_tokens": _total(before, after),
        "rounds": rounds,
        "continuations": len(rounds) - 1,
    }
    if "logprobs" in facts:  # kept of every round, or of none
        facts["logprobs"] = [*before.facts.get("logprobs", ()), *facts["logprobs"]]
    if len(facts.get("logprobs", ())) != before.output_ids.size + after.output_ids.size:
        facts.pop("logprobs", None)
    served = after.facts.get("finish_reason")
    if isinstance(served, Mapping) and "length" in served:
        facts["finish_reason"] = {**served, "length": before.output_ids.size + served["length"]}
    return attrs.evolve(
        after,
        input_ids=before.input_ids,
        output_ids=np.concatenate([before.output_ids, after.output_ids]),
        facts=facts,
    )


def _total(before: Completion, after: Completion) -> int | None:
    """Add the server's counts; a round whose prompt it counted otherwise than it was sent spoils the sum."""
    first, second = before.facts.get("completion_tokens"), after.facts.get("completion_tokens")
    if first is None or second is None:
        return None
    seen = after.facts.get("prompt_tokens")
    lost = 0 if seen is None else after.input_ids.size - int(seen)
    return int(first) + int(second) - lost


def _round(completion: Completion) -> dict[str, Any]:
    """Return what is kept of one round: where it started, how it ended, who made it."""
    kept = ("server", "server_version", "weight_version", "rid", "completion_tokens", "latency_seconds")
    return {
        "prompt_ids": completion.input_ids.size,
        "output_ids": completion.output_ids.size,
        "finish_reason": completion.finish_reason,
        **{name: completion.facts[name] for name in kept if name in completion.facts},
    }
