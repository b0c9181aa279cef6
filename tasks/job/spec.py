"""`JobSpec`: what to generate, with what, to where. One frozen model, refuses unknown fields.

Its sections are in `tasks.job.sections` and `tasks.job.places`, and may be imported from here.
"""

import hashlib
from collections.abc import Iterator
from typing import Any, Self

import orjson
from pydantic import BaseModel, model_validator

from tasks.job.places import PromptsSpec, SourceSpec
from tasks.job.sections import (
    BatchSpec,
    ModelSpec,
    PolicySpec,
    SamplingSpec,
    Section,
    ServersSpec,
    ToolsSpec,
    field,
)
from tasks.job.store_section import StoreSpec

__all__ = [
    "SCHEMA_VERSION",
    "BatchSpec",
    "JobSpec",
    "ModelSpec",
    "PolicySpec",
    "PromptsSpec",
    "SamplingSpec",
    "Section",
    "ServersSpec",
    "SourceSpec",
    "StoreSpec",
    "ToolsSpec",
]

SCHEMA_VERSION = 1
"""Version of everything that is stored; a reader refuses a higher one."""


def runs_unpinned_code(model: ModelSpec) -> bool:
    """Say whether a repository's own code would run, of whatever commit is its newest."""
    local = model.tokenizer.startswith((".", "/", "~"))
    return model.trust_remote_code and not local and model.revision is None


class JobSpec(Section):
    """One job: prompts in, checked raw token ids out."""

    name: str = field(
        ...,
        "Name of the dataset; part of its address.",
        0,
        identity=True,
        pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$",
    )
    model: ModelSpec = field(..., "Whose tokens these are.", 1)
    prompts: PromptsSpec = field(..., "Which prompts.", 2)
    servers: ServersSpec = field(..., "Which SGLang servers.", 3)
    sampling: SamplingSpec = field(SamplingSpec(), "How tokens are drawn.", 4)
    policy: PolicySpec = field(PolicySpec(), "What counts as good.", 5)
    batch: BatchSpec = field(BatchSpec(), "The unit of retry, checkpoint and commit.", 6)
    store: StoreSpec = field(..., "Where the dataset goes.", 7)
    tools: ToolsSpec = field(ToolsSpec(), "Tool loops.", 8)

    @model_validator(mode="after")
    def _remote_code_is_pinned(self) -> Self:
        if runs_unpinned_code(self.model):
            raise ValueError("model.trust_remote_code runs the repository's code: give model.revision too")
        return self

    def identity(self) -> dict[str, Any]:
        """Return what `job_id` hashes: the fields that can change a token, where not at their default.

        Defaults are left out so that a field added by a later version does not rename existing jobs.
        """
        return dict(_identity_fields(self, ""))

    @property
    def job_id(self) -> str:
        """`<name>-<12 hex digits of sha256 over the identity fields as canonical JSON>`."""
        text = orjson.dumps(self.identity(), option=orjson.OPT_SORT_KEYS)
        return f"{self.name}-{hashlib.sha256(text).hexdigest()[:12]}"


def _identity_fields(section: BaseModel, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, info in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from _identity_fields(value, f"{prefix}{name}.")
        elif isinstance(info.json_schema_extra, dict) and info.json_schema_extra["identity"]:
            if value == info.default:
                continue
            yield f"{prefix}{name}", value
