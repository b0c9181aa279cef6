"""The sections of `JobSpec`, in the order of the run form.

Every field has a description (the form's help text), a unit where it has one, bounds, and a `position`.
Fields marked `identity` can change a token and therefore belong to `job_id`.
"""

import re
from typing import Annotated, Any, Literal, Self, get_args
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_validator,
)


class Section(BaseModel):
    """A frozen group of fields that refuses unknown ones, and `true`, NaN and infinity as numbers."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        protected_namespaces=(),
        model_title_generator=lambda section: section.__name__.removesuffix("Spec"),  # heads the form's group
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_boolean_is_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse `true` for a number, which pydantic takes for 1; raises ValueError."""
        if isinstance(value, bool) and info.field_name is not None:
            wanted = cls.model_fields[info.field_name].annotation
            if {int, float} & {wanted, *get_args(wanted)}:
                raise ValueError("expected a number")
        return value


def field(default: Any, description: str, position: int, *, identity: bool = False, **bounds: Any) -> Any:
    """Return a field of the form; `identity` marks what can change a token, `bounds` are pydantic's."""
    return Field(
        default,
        description=description,
        json_schema_extra={"position": position, "identity": identity},
        **bounds,
    )


PLAIN_URL = r"^https?://[^\s/@?#]+(/[^\s?#]*)?$"
WITHOUT_CREDENTIALS = r"^(?![A-Za-z0-9+.-]*://[^/]*@)(?!s3://[^/]*:)"  # a secret key may hold slashes


def _plain_url(url: str) -> str:
    if not re.fullmatch(PLAIN_URL, url):
        raise ValueError("expected http://host:port without credentials or query")
    try:
        _endpoint(url)
    except ValueError:
        raise ValueError("expected a port in [1, 65535]") from None
    return url


def _endpoint(url: str) -> tuple[str, str | None, int, str]:
    """Return scheme, host in lower case, port and path: equal for addresses of one server.

    Raises:
        ValueError: the port is no number in [1, 65535].
    """
    parts = urlsplit(url)
    port = parts.port if parts.port is not None else {"http": 80, "https": 443}[parts.scheme]
    if port == 0:
        raise ValueError("port 0")
    return parts.scheme, parts.hostname, port, parts.path.rstrip("/")


def without_credentials(uri: str) -> str:
    """Return an address as it came; raises ValueError when it carries a user or a password."""
    if not re.match(WITHOUT_CREDENTIALS, uri):
        raise ValueError("expected an address without credentials")
    return uri


# the patterns stand in the form's schema too: Prefect then refuses a secret before it stores it
Url = Annotated[str, Field(json_schema_extra={"pattern": PLAIN_URL}), AfterValidator(_plain_url)]
ShownAddress = Annotated[str, Field(json_schema_extra={"pattern": WITHOUT_CREDENTIALS})]
Address = Annotated[ShownAddress, AfterValidator(without_credentials)]


class ModelSpec(Section):
    """Whose tokens these are."""

    tokenizer: str = field(
        ..., "Model name or folder with tokenizer files and chat template.", 0, identity=True, min_length=1
    )
    revision: str | None = field(None, "Commit or tag of the model repository.", 1, identity=True)
    trust_remote_code: bool = field(
        False,
        "Run the tokenizer's own Python code (Kimi needs it). Only with a revision or a local folder.",
        2,
        identity=True,
    )
    template_args: dict[str, Any] = field(
        {},
        "Keyword arguments of the chat template, e.g. thinking: true. One that changes nothing is refused.",
        3,
        identity=True,
    )
    control_tokens: Literal["refuse", "as_text"] = field(
        "refuse",
        "Text in messages that spells a control token: refuse the row, or encode it as plain text.",
        4,
        identity=True,
    )
    grammar: dict[str, Any] = field(
        {},
        "For a chat format that is not known, or known wrongly: family, opener, closer, thinking, end, "
        "turn_starts, tool_begin, tool_end, plain, trim.",
        5,
        identity=True,
    )


class ToolsSpec(Section):
    """What becomes of recorded tool results when the calls before them are made again."""

    match: Literal["position", "name", "name_args"] = field(
        "name_args",
        "A recorded result answers a regenerated call of equal position, function, or function and "
        "arguments; without one the conversation ends (unreached).",
        0,
        identity=True,
    )


class ServersSpec(Section):
    """Which SGLang servers, and what may be done to them."""

    urls: list[Url] = field(..., "Base URLs, e.g. http://127.0.0.1:30000.", 0, min_length=1)
    api_key_env: str | None = field(None, "Name of the environment variable that holds the API key.", 1)
    restart: Literal["none", "local", "command"] = field(
        "none",
        "With a parser on: stop with the evidence, restart the local process without the flag, or run "
        "restart_commands.",
        2,
    )
    reasoning_parser: Literal["forbid", "allow_if_faithful"] = field(
        "forbid",
        "A server with --reasoning-parser: not used as it is, or used when its probe shows raw ids.",
        3,
    )
    ready_timeout_seconds: float = field(
        1800.0, "How long a loading or absent server is waited for, in seconds.", 4, gt=0, le=86400
    )
    drain_timeout_seconds: float = field(
        30.0, "How long a server that is being stopped may finish its work, in seconds.", 5, ge=0, le=3600
    )
    connect_timeout_seconds: float = field(5.0, "Time limit of one TCP connect, in seconds.", 6, gt=0, le=120)
    info_timeout_seconds: float = field(
        30.0, "Time limit of every call except generation, in seconds.", 7, gt=0, le=600
    )
    restart_commands: dict[Literal["restart", "stop", "start"], str] = field(
        {},
        "For restart: command. Either restart, or stop and start: commands that make the server run without "
        "the parser, with {url}, {host} and {port} filled in. start must return, not stay.",
        8,
    )
    restart_busy: bool = field(False, "Restart a server that still works for others after draining.", 9)
    also_remove: list[Literal["tool_call_parser", "enable_strict_thinking"]] = field(
        [],
        "Further SGLang flags that a server must not have on: it is refused or restarted for them as for a "
        "reasoning parser.",
        10,
    )
    restart_crashed: bool = field(
        False,
        "With restart: local, start a server again that this run had restarted and that has ended since, "
        "even if somebody ended it on purpose. Other servers that go away are waited for.",
        11,
    )
    allow_models: list[Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8}$")]] = field(
        [],
        "Names of further models whose rows may enter this dataset, as the refusal of their server gave "
        "them. The dataset says which servers had them.",
        12,
    )

    @field_validator("urls")
    @classmethod
    def _urls_differ(cls, urls: list[str]) -> list[str]:
        if len({_endpoint(url) for url in urls}) != len(urls):
            raise ValueError("a server is listed twice")
        return [url.rstrip("/") for url in urls]

    @model_validator(mode="after")
    def _commands_are_whole(self) -> Self:
        given = set(self.restart_commands)
        if self.restart == "command" and given not in ({"restart"}, {"stop", "start"}):
            raise ValueError("restart: command needs restart_commands with restart, or with stop and start")
        return self


class SamplingSpec(Section):
    """How tokens are drawn. What is left empty comes from the model's generation_config.json."""

    temperature: float | None = field(None, "0 is greedy.", 0, identity=True, ge=0, le=10)
    top_p: float | None = field(None, "Nucleus share, in (0, 1].", 1, identity=True, gt=0, le=1)
    top_k: int | None = field(
        None,
        "Most likely ids kept; -1 keeps all.",
        2,
        identity=True,
        ge=-1,
        le=2**31 - 1,  # SGLang keeps it as int32
    )
    min_p: float | None = field(
        None, "Least share of the best id's probability.", 3, identity=True, ge=0, le=1
    )
    repetition_penalty: float | None = field(
        None, "1 is none; SGLang's sampling_params of the same name.", 4, identity=True, gt=0, le=2
    )
    max_new_tokens: int | None = field(
        None,
        "Cap of generated ids a row; empty: 32,768 when thinking, else 4,096. Clamped to the context.",
        5,
        identity=True,
        ge=1,
        le=1_048_576,
    )
    samples: int = field(1, "Independent answers per prompt.", 6, identity=True, ge=1, le=1024)
    seed: int = field(
        0,
        "Seed of the job; a row's own seed is a hash of it and the row id.",
        7,
        identity=True,
        ge=0,
        le=2**64 - 1,  # what JSON writers keep exactly, and job.json holds it
    )
    mix: list[dict[str, Any]] = field(
        [],
        "Ways of drawing rows, chosen per conversation by hash: weight, name, template_args, temperature, …",
        8,
        identity=True,
    )
    logprobs_share: float = field(0.0, "Share of rows whose log probabilities are kept.", 9, ge=0, le=1)

    @field_validator("top_k")
    @classmethod
    def _top_k_not_zero(cls, top_k: int | None) -> int | None:
        if top_k == 0:
            raise ValueError("expected -1 (all) or at least 1, got 0")
        return top_k


class PolicySpec(Section):
    """What counts as good."""

    accept: Literal["canonical", "intact"] = field(
        "canonical",
        "canonical: the full structure; intact: also what the model really did out of form, marked.",
        0,
        identity=True,
    )
    on_length: Literal["keep", "reject", "continue"] = field(
        "keep",
        "Rows cut by the length cap: keep them marked, reject them, or continue them.",
        1,
        identity=True,
    )
    max_attempts: int = field(5, "Attempts of a row before it is parked as poison.", 2, ge=1, le=100)
    accepted_floor: float = field(
        0.98, "A run with a smaller accepted share ends as failed (exit 1).", 3, ge=0, le=1
    )
    rounds: int = field(4, "on_length continue: rounds after the first.", 4, identity=True, ge=1, le=64)


class BatchSpec(Section):
    """The unit of retry, checkpoint and commit."""

    rows: int = field(2000, "Source records per batch.", 0, ge=1, le=100_000)
    in_flight: int | None = field(
        None, "Rows in flight per server at first; empty: what the server says it runs.", 1, ge=1, le=65_536
    )
    journal_dir: str | None = field(
        None, "Local folder for journals; empty: rawseq/ under XDG_STATE_HOME or ~/.local/state.", 2
    )
    journal_upload_seconds: float | None = field(
        None,
        "How often journals are copied into the store, in seconds: another machine can then resume a "
        "half-done batch; empty: never.",
        3,
        ge=1,
        le=86400,
    )
    lease_seconds: float = field(
        90.0, "A worker that is silent for so many seconds is taken for dead.", 4, ge=3, le=3600
    )
    render_processes: int | None = field(
        None, "Processes that render prompts; 0: a thread; empty: some, in a long job only.", 5, ge=0, le=64
    )
    journal_gigabytes: float = field(
        64.0,  # 2 million rows of 8k ids: more than any tail of open batches, less than a server's disk
        "How much the journals may hold on the local disk, in gigabytes; above it no further batch is opened "
        "until one is committed (a single batch may be larger).",
        6,
        gt=0,
        le=1_000_000,
    )
