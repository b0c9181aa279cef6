"""`sampling.mix`: rows drawn in different ways (temperatures, reasoning on and off), chosen by hash."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from pydantic import ValidationError

from tasks.errors import JobError
from tasks.job.spec import SamplingSpec

SAMPLED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")
"""Sampling fields that an entry may set."""


@attrs.frozen(slots=True, eq=False)
class Mix:
    """One way of drawing rows.

    Args:
        name: stored in the row; by default its place in the list.
        weight: share of the rows, relative to the others.
        sampling: fields of `sampling_params` that differ from the job's.
        template_args: arguments of the chat template that differ from the job's.
    """

    name: str
    weight: float
    sampling: dict[str, Any]
    template_args: dict[str, Any]


def read_mix(entries: Sequence[Mapping[str, Any]]) -> tuple[Mix, ...]:
    """Return the job's mixture.

    Args:
        entries: `{weight?, name?, template_args?, temperature?, top_p?, …}` each.

    Raises:
        JobError: naming entry and field, what was expected and what came.
    """
    mixes = []
    for place, entry in enumerate(entries):
        where = f"sampling.mix.{place}"
        unknown = set(entry) - {"weight", "name", "template_args", *SAMPLED}
        if unknown:
            raise JobError(
                f"{where}.{min(unknown)}: expected weight, name, template_args, {', '.join(SAMPLED)}"
            )
        weight = entry.get("weight", 1.0)
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight < 1e9:
            raise JobError(f"{where}.weight: expected a number above 0, got {weight!r}")
        sampling = {name: entry[name] for name in SAMPLED if entry.get(name) is not None}
        _check_bounds(sampling, where)
        args = entry.get("template_args", {})
        if not isinstance(args, Mapping):
            raise JobError(f"{where}.template_args: expected name: value pairs, got {args!r}")
        args = dict(args)
        mixes.append(Mix(str(entry.get("name", place)), float(weight), sampling, args))
    if len({mix.name for mix in mixes}) != len(mixes):
        raise JobError(f"sampling.mix: names must be unique, got {[mix.name for mix in mixes]}")
    return tuple(mixes)


def _check_bounds(sampling: Mapping[str, Any], where: str) -> None:
    """Hold an entry's fields to the bounds of the job's own: servers would refuse every row of it."""
    try:
        SamplingSpec.model_validate(sampling, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        message = first["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
        raise JobError(f"{where}.{first['loc'][0]}: {message}, got {first['input']!r}") from None


def sampling_of(mixes: Sequence[Mix], resolved: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return how a row was drawn.

    Args:
        mixes: the job's.
        resolved: the job's resolved sampling.
        name: the row's choice, as stored in it; "" without a mixture.
    """
    chosen = next((mix.sampling for mix in mixes if mix.name == name), {})
    return {**resolved, **chosen}


def choose_mix(mixes: Sequence[Mix], job_seed: int, conversation: str) -> Mix | None:
    """Return the entry for a conversation, None without a mixture: by hash, whatever the order or the batch.

    All turns of a conversation are drawn in one way, or its history would be of another mode than its prompt.

    Args:
        mixes: the job's.
        job_seed: of the job.
        conversation: what names it: its row ids without the turn.
    """
    if not mixes:
        return None
    digest = hashlib.sha256(f"mix:{job_seed}:{conversation}".encode()).digest()
    point = int.from_bytes(digest[:8], "big") / 2**64 * sum(mix.weight for mix in mixes)
    for mix in mixes:
        point -= mix.weight
        if point < 0:
            return mix
    return mixes[-1]
