"""One source record in any of the shapes people have, made into messages (pure).

`{"prompt": str}`, `{"messages": [...], "tools"?: [...]}`, ShareGPT `{"conversations": [{from, value}]}` and
MT-bench `{"turns": [str]}`; the id is `id`, else `question_id`, else `uuid`, else the line.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

import attrs
import orjson

from tasks.rows.verdicts import Code

SHAPES: Final = ("messages", "conversations", "turns", "prompt")
"""Looked for in this order: a record with `messages` and a `prompt` beside it is a conversation."""

IDS: Final = ("id", "question_id", "uuid")

_ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool"})
_SHAREGPT_ROLES: Final = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
}


@attrs.frozen(slots=True, eq=False)
class Record:
    """One source record.

    Args:
        source: name of its source.
        record_id: its id, or its line; unique within the source.
        line: 1-based line (JSONL) or row (Parquet).
        messages: role and content per message; empty when `error` is set.
        tools: function schemas, None if there are none.
        metadata: the record's other fields as JSON text.
        error: why nothing is generated for it: expected and got, with file:line; "" for a good one.
        digest: hex sha256 of its raw content, as it lies in the file.
        code: what its rows are when `error` is set.
    """

    source: str
    record_id: str
    line: int
    messages: tuple[dict[str, Any], ...]
    tools: list[dict[str, Any]] | None
    metadata: str
    error: str
    digest: str
    code: Code = Code.BAD_RECORD

    @property
    def name(self) -> str:
        """`<source>:<record id>`, not percent-encoded."""
        return f"{self.source}:{self.record_id}"


@attrs.frozen(slots=True)
class Place:
    """Where the next record of a source begins.

    Args:
        line: 1-based line or row of the next record.
        offset: its byte offset; 0 where the file has no such thing (Parquet).
    """

    line: int = 1
    offset: int = 0


class SourceFile(Protocol):
    """One prompt file."""

    def records(self, name: str, place: Place, fields: Mapping[str, str]) -> Iterator[tuple[Record, Place]]:
        """Yield the records from `place` on, each with where it begins; owns and closes the file."""

    def stamp(self) -> str | None:
        """Return how the file looks from outside: it stays the same while nobody writes; None: unknown."""


class BadRecordError(ValueError):
    """A record is malformed: expected and got, without its place."""


def read_json_record(raw: bytes, source: str, place: str, line: int, fields: Mapping[str, str]) -> Record:
    """Make one JSONL line into a record; a malformed one comes back with `error` set.

    Args:
        raw: the line without its end.
        source: name of its source.
        place: the file's name for messages.
        line: 1-based.
        fields: our field name to the file's.
    """
    digest = hashlib.sha256(raw).hexdigest()
    try:
        data = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        return bad_record(source, line, f"{place}:{line}: {_why_not_json(raw, error)}", digest)
    return make_record(data, source, place, line, fields, digest)


def _why_not_json(raw: bytes, error: orjson.JSONDecodeError) -> str:
    try:
        raw.decode()
    except UnicodeDecodeError as bad:
        return f"expected UTF-8, got byte 0x{raw[bad.start]:02x} at byte {bad.start + 1} of the line"
    return f"expected one JSON object a line, got {_short(raw.decode())} ({error.msg}, column {error.colno})"


def bad_record(source: str, line: int, error: str, digest: str, data: Any = None) -> Record:
    """Return the record that stands for a malformed one, under its own id if it has a good one."""
    try:
        record_id = _record_id(data, line, {}) if isinstance(data, dict) else f"bad-line-{line}"
    except BadRecordError:
        record_id = f"bad-line-{line}"
    return Record(source, record_id, line, (), None, "{}", error, digest)


def make_record(
    data: Any, source: str, place: str, line: int, fields: Mapping[str, str], digest: str
) -> Record:
    """Make parsed content into a record; see `read_json_record`."""
    try:
        if not isinstance(data, dict):
            raise BadRecordError(f"expected a JSON object, got {_kind(data)}")
        names = {ours: fields.get(ours, ours) for ours in (*SHAPES, "tools")}
        shape = _shape(data, names, fields)
        messages = _READERS[shape](data[names[shape]], names[shape])
        tools = _tools(data.get(names["tools"]), names["tools"])
        record_id = _record_id(data, line, fields)
        used = {names[shape], names["tools"], *(fields.get(name, name) for name in IDS)}
        other = {key: value for key, value in data.items() if key not in used}
    except BadRecordError as error:
        return bad_record(source, line, f"{place}:{line}: {error}", digest, data)
    text = orjson.dumps(other, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS, default=_plain).decode()
    return Record(source, record_id, line, messages, tools, text, "", digest)


def _shape(data: dict[str, Any], names: Mapping[str, str], fields: Mapping[str, str]) -> str:
    for ours in SHAPES:
        if ours in fields and data.get(names[ours]) is None:
            got = "null in it" if names[ours] in data else f"fields {sorted(data)}"
            raise BadRecordError(f"missing field {names[ours]!r} (prompts.fields.{ours}), got {got}")
    for ours in SHAPES:
        if data.get(names[ours]) is not None:
            return ours
    expected = ", ".join(repr(names[ours]) for ours in SHAPES)
    empty = [f"{names[ours]!r}: null" for ours in SHAPES if names[ours] in data]
    if empty:
        raise BadRecordError(f"expected one of {expected} with a value, got {', '.join(empty)}")
    raise BadRecordError(f"missing field: expected one of {expected}, got fields {sorted(data)}")


def _record_id(data: dict[str, Any], line: int, fields: Mapping[str, str]) -> str:
    for ours in IDS:
        value = data.get(fields.get(ours, ours))
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            raise BadRecordError(
                f"field {fields.get(ours, ours)!r}: expected a string or an integer, got {_kind(value)}"
            )
        return str(value)
    return str(line)


def _prompt(value: Any, name: str) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, str) or not value:
        raise BadRecordError(f"field {name!r}: expected a string that is not empty, got {_kind(value)}")
    return ({"role": "user", "content": value},)


def _turns(value: Any, name: str) -> tuple[dict[str, Any], ...]:
    turns = _items(value, name)
    for index, turn in enumerate(turns):
        if not isinstance(turn, str) or not turn:
            raise BadRecordError(f"field {name}[{index}]: expected a string, got {_kind(turn)}")
    return tuple({"role": "user", "content": turn} for turn in turns)


def _conversations(value: Any, name: str) -> tuple[dict[str, Any], ...]:
    messages = []
    for index, item in enumerate(_items(value, name)):
        if not isinstance(item, dict):
            raise BadRecordError(f"field {name}[{index}]: expected an object, got {_kind(item)}")
        if "from" not in item and "role" in item:
            messages.append(item)  # the field's name is ShareGPT's, its items are chat messages
            continue
        role = _SHAREGPT_ROLES.get(str(item.get("from")))
        if role is None:
            known = ", ".join(sorted(_SHAREGPT_ROLES))
            raise BadRecordError(
                f"field {name}[{index}].from: expected one of {known}, got {item.get('from')!r}"
            )
        messages.append({"role": role, "content": item.get("value")})
    return _messages(messages, name)


def _messages(value: Any, name: str) -> tuple[dict[str, Any], ...]:
    messages = []
    for index, item in enumerate(_items(value, name)):
        where = f"field {name}[{index}]"
        if not isinstance(item, dict):
            raise BadRecordError(f"{where}: expected an object, got {_kind(item)}")
        message = {key: part for key, part in item.items() if part is not None}
        if message.get("role") not in _ROLES:
            expected = ", ".join(sorted(_ROLES))
            raise BadRecordError(f"{where}.role: expected one of {expected}, got {message.get('role')!r}")
        calls = message.get("tool_calls")
        if calls is not None and not isinstance(calls, list):
            raise BadRecordError(f"{where}.tool_calls: expected a list, got {_kind(calls)}")
        content = message.setdefault("content", "" if calls else None)
        if not isinstance(content, str | list):
            raise BadRecordError(f"{where}.content: expected a string, got {_kind(content)}")
        messages.append(message)
    spoken = [(index, message["role"]) for index, message in enumerate(messages)]
    first = next((index for index, role in spoken if role == "user"), None)
    if first is None:
        raise BadRecordError(f"field {name!r}: expected a user message, got none")
    early = next((index for index, role in spoken[:first] if role in ("assistant", "tool")), None)
    if early is not None:
        raise BadRecordError(
            f"field {name}[{early}]: expected a user message before the first answer, got an answer to "
            "nothing: cut it off, or set prompts.on_bad_row: reject"
        )
    return tuple(messages)


def fit_for(turns: str, record: Record, place: str) -> Record:
    """Return the record, as a bad one if `prompts.turns` builds on answers of which it records none.

    Its questions would otherwise stand one behind the other in one prompt.

    Args:
        turns: `prompts.turns`.
        record: as it was read.
        place: the file's name for messages.
    """
    roles = [message["role"] for message in record.messages]
    if turns not in ("last", "each_recorded") or roles.count("user") < 2 or "assistant" in roles:
        return record
    return attrs.evolve(
        record,
        messages=(),
        error=f"{place}:{record.line}: prompts.turns {turns!r} builds on recorded answers: expected some, "
        f"got {roles.count('user')} user messages without one; use each (answers are generated) or first",
    )


_READERS: Final = {"prompt": _prompt, "turns": _turns, "conversations": _conversations, "messages": _messages}


def _items(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise BadRecordError(f"field {name!r}: expected a list that is not empty, got {_kind(value)}")
    return value


def _tools(value: Any, name: str) -> list[dict[str, Any]] | None:
    if value is None or value == []:
        return None
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise BadRecordError(
                f"field {name!r}: expected JSON, got {_short(value)} ({error.msg})"
            ) from error
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise BadRecordError(f"field {name!r}: expected a list of objects, got {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    names = {dict: "object", list: "list", str: "string", bool: "boolean", int: "integer", float: "number"}
    if value is None:
        return "nothing"
    kind = names.get(type(value), type(value).__name__)
    return f"an empty {kind}" if value in ("", [], {}) else f"{kind} {_short(str(value))}"


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _plain(value: Any) -> Any:
    """Say what JSON cannot: bytes of Parquet columns as hex, everything else as its text."""
    return value.hex() if isinstance(value, bytes) else str(value)
