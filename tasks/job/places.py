"""The job's prompts: where they come from, in which shares, and which of them are left out."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, field_validator

from tasks.job.sections import Address, Section, ShownAddress, field


class SourceSpec(Section):
    """A source with a name or a share of its own; a plain address stands for one without either."""

    uri: Address = field(
        ..., "File, folder, glob, s3:// address, or hf://org/repo[:subset[:split]].", 0, min_length=1
    )
    weight: float | None = field(
        None,
        "Share of this source among the records; any source with one: all are interleaved (1 where empty).",
        1,
        gt=0,
        le=1e6,
        allow_inf_nan=False,
    )
    name: str | None = field(
        None,
        "First part of its row ids; empty: the file's name. What is planned keeps its name.",
        2,
        min_length=1,
        max_length=200,
    )


def _source(value: Any) -> Any:
    """Choose the form by what is written, so that an error names one field and not every form's."""
    if isinstance(value, dict):
        return SourceSpec.model_validate(value)
    if isinstance(value, str):
        return SourceSpec(uri=value).uri
    if isinstance(value, SourceSpec):
        return value
    raise ValueError("expected an address or {uri, weight, name}")


Source = Annotated[ShownAddress | SourceSpec, BeforeValidator(_source)]


class PromptsSpec(Section):
    """Which prompts."""

    sources: list[Source] = field(
        ...,
        "Files, folders, globs (JSONL, Parquet), s3:// addresses or hf://org/repo[:subset[:split]] of prompt "
        "records; or {uri, weight, name} to mix them by weight.",
        0,
        min_length=1,
    )
    limit: int | None = field(None, "Plan at most this many records; raising it later adds batches.", 1, ge=1)
    turns: Literal["each", "last", "first", "each_recorded"] = field(
        "each",
        "Conversations: each turn on regenerated history, each on its recorded one, the last, or the first.",
        2,
        identity=True,
    )
    fields: dict[str, str] = field(
        {}, "Other column names, e.g. {messages: chat}: our name to the file's.", 3, identity=True
    )
    on_bad_row: Literal["stop", "reject"] = field(
        "stop",
        "A malformed record: stop before anything is generated, or record it as rejected (bad_record).",
        4,
    )
    duplicates: Literal["reject", "keep"] = field(
        "reject",
        "A record whose messages and tools an earlier one has: record it as rejected (duplicate), or make it "
        "too. Decided when a record is planned, for good.",
        5,
    )
    exclude: list[Address] = field(
        [],
        "Prompt files, e.g. evaluation sets: records that begin with the user messages of one there, but for "
        "case and white space, are rejected (duplicate). Decided when a record is planned, for good.",
        6,
    )

    @field_validator("sources")
    @classmethod
    def _names_differ(cls, sources: list[str | SourceSpec]) -> list[str | SourceSpec]:
        names = [source.name for source in sources if isinstance(source, SourceSpec) and source.name]
        if len(set(names)) != len(names):
            raise ValueError("a name is given to two sources")
        return sources

    @property
    def parts(self) -> tuple[SourceSpec, ...]:
        """Every source in its long form."""
        return tuple(part if isinstance(part, SourceSpec) else SourceSpec(uri=part) for part in self.sources)

    @property
    def seeded(self) -> bool:
        """Whether the sources are interleaved rather than read one behind the other."""
        return any(part.weight is not None for part in self.parts)
