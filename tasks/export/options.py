"""What an export is asked for: the fields of `rawseq export` and of the flow's form."""

from typing import Final, Literal, Self

from pydantic import model_validator

from tasks.export.masks import BOUNDARIES, SWITCHES
from tasks.job.sections import Address, Section, field
from tasks.job.store_section import StoreSpec
from tasks.rows.verdicts import BEHAVIOUR, CUT, Code

FormatName = Literal[
    "specforge",
    "specforge-conversations",
    "speculators",
    "speculators-arrow",
    "datasets",
    "parquet",
    "frequencies",
]

MayInclude: Final = BEHAVIOUR | CUT
"""Rejected rows that may be trained on after all: intact, but not the canonical form (decisions 1 and 2)."""


_CODES: Final = frozenset(code.value for code in Code)


class ExportedStore(StoreSpec):
    """A dataset to export."""

    weight: float = field(
        1.0,
        "How often its rows come: 2 twice, 0.5 every second one, chosen by a hash of the ids.",
        7,
        gt=0,
        le=1000,
    )


class ExportPlace(StoreSpec):
    """Where an export goes."""

    uri: Address = field(
        ...,
        "Folder, or s3://bucket/prefix; empty or of the same export, which then goes on.",
        0,
        min_length=1,
    )


class ExportOptions(Section):
    """How rows become what a trainer reads."""

    to: FormatName = field("specforge", "Which trainer's files.", 0)
    include: tuple[str, ...] = field(
        (), "Codes of rejected rows to take in as well, e.g. repetition; integrity codes never.", 1
    )
    mask: tuple[str, ...] = field((), f"Kinds of ids that are not to be learnt: {', '.join(SWITCHES)}.", 2)
    learn_prefill: bool = field(
        False, "Learn the reasoning opener that the template writes at the end of the prompt.", 3
    )
    boundary: str = field(
        "raw", f"Where the mask lies for a trainer's own shift: {', '.join(BOUNDARIES)}.", 4
    )
    max_length: int | None = field(None, "Longest sequence, in ids; empty: no limit.", 5, ge=2)
    over_length: Literal["cut", "drop"] = field(
        "cut",
        "A longer sequence is cut at the end, or dropped; one with nothing left to learn is dropped.",
        6,
    )
    dedup: Literal["rows", "prompts", "none"] = field(
        "rows",
        "rows: equal sequences come once; prompts: one answer per prompt and sample number; none.",
        7,
    )
    merge_turns: bool = field(
        False, "Turns of which each prompt begins with the turn before become one sequence.", 8
    )
    eval_share: float = field(
        0.0, "Share of source records that go to eval/, all turns and samples together.", 9, ge=0, lt=1
    )
    seed: int = field(0, "Of the split and of fractional weights.", 10, ge=0)
    file_tokens: int | None = field(
        None, "Ids per file; empty: what suits the trainer (256 Mi for specforge, else 64 Mi).", 11, ge=1
    )
    draft_vocab: int | None = field(
        None, "Size of a draft vocabulary to map (d2t, t2d); empty: none.", 12, ge=1
    )

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        for name, value, known in (
            ("mask", self.mask, SWITCHES),
            ("boundary", (self.boundary,), BOUNDARIES),
            ("include", self.include, sorted(MayInclude)),
        ):
            for part in value:
                if part not in known:
                    hint = ": its ids cannot be proved" if name == "include" and part in _CODES else ""
                    raise ValueError(f"{name}: expected one of {', '.join(known)}, got {part!r}{hint}")
        return self

    @model_validator(mode="after")
    def _text_has_no_masks(self) -> Self:
        if self.to != "specforge-conversations":
            return self
        idle = [name for name in ("mask", "learn_prefill", "merge_turns") if getattr(self, name)]
        idle += ["boundary"] if self.boundary != "raw" else []
        if idle:
            raise ValueError(f"to: {self.to} is text, its trainer makes the masks: got {', '.join(idle)}")
        if self.max_length is not None and self.over_length == "cut":
            raise ValueError(f"over_length: expected drop, {self.to} is text that cannot be cut at an id")
        return self
