"""Prompt files: every shape people have, every way they are broken, and reading any batch again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deployments.local.seaweed import Seaweed
from tasks.errors import JobError, SourceError, SurroundingsError
from tasks.job.spec import PromptsSpec, StoreSpec
from tasks.ledger.ledger import Ledger
from tasks.ledger.plan import Mark
from tasks.prompts.opening import open_sources
from tasks.prompts.plan_batches import extend_plan
from tasks.prompts.record import Record, read_json_record
from tasks.prompts.sources import Sources
from tasks.store.opening import open_store

SYSTEM = {"role": "system", "content": "Be kind"}
USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello"}


def read(data: Any, line: int = 7, fields: dict[str, str] | None = None) -> Record:
    """Read one record from JSON or raw bytes."""
    raw = data if isinstance(data, bytes) else orjson.dumps(data)
    return read_json_record(raw, "src", "file.jsonl", line, fields or {})


@pytest.mark.parametrize(
    ("data", "messages"),
    [
        ({"prompt": "Hi"}, (USER,)),
        ({"messages": [USER, ANSWER]}, (USER, ANSWER)),
        ({"messages": [USER], "prompt": "other"}, (USER,)),
        (
            {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
            (USER, ANSWER),
        ),
        ({"conversations": [USER, ANSWER]}, (USER, ANSWER)),
        ({"turns": ["Hi", "And?"]}, (USER, {"role": "user", "content": "And?"})),
        ({"messages": [USER | {"name": None, "tool_calls": None}]}, (USER,)),
    ],
    ids=["prompt", "messages", "messages-win", "sharegpt", "sharegpt-chat", "mt-bench", "nulls"],
)
def test_shapes(data: dict[str, Any], messages: tuple[dict[str, Any], ...]) -> None:
    """Each shape becomes chat messages."""
    record = read(data)
    assert record.error == ""
    assert record.messages == messages


def test_tool_calls_need_no_content() -> None:
    """An assistant message that only calls tools is a message."""
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    record = read({"messages": [USER, call], "tools": [{"name": "f"}]})
    assert record.error == ""
    assert record.messages[1] == {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}
    assert record.tools == [{"name": "f"}]
    assert read({"prompt": "Hi", "tools": '[{"name":"f"}]'}).tools == [{"name": "f"}]


@pytest.mark.parametrize(
    ("data", "record_id"),
    [
        ({"id": "a", "question_id": "b"}, "a"),
        ({"question_id": 3, "uuid": "u"}, "3"),
        ({"uuid": "u"}, "u"),
        ({"id": None}, "7"),
        ({}, "7"),
    ],
    ids=["id", "question_id", "uuid", "null", "line"],
)
def test_record_ids(data: dict[str, Any], record_id: str) -> None:
    """The id is id, else question_id, else uuid, else the line."""
    assert read({"prompt": "Hi", **data}).record_id == record_id


def test_other_fields_are_metadata() -> None:
    """What is neither id nor content stays with the row as JSON with sorted keys."""
    record = read({"id": 1, "prompt": "Hi", "z": [1], "a": {"b": None}})
    assert record.metadata == '{"a":{"b":null},"z":[1]}'


def test_fields_map_other_names() -> None:
    """prompts.fields names the file's columns; a mapped one that is missing is an error."""
    fields = {"messages": "chat", "id": "key"}
    record = read({"key": "k", "chat": [USER], "id": "other"}, fields=fields)
    assert (record.record_id, record.messages, record.metadata) == ("k", (USER,), '{"id":"other"}')
    assert "missing field 'chat' (prompts.fields.messages)" in read({"messages": [USER]}, fields=fields).error


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"prompt": "Hi"', "expected one JSON object a line, got"),
        (b"\xff\xfe{", "expected UTF-8, got byte 0xff at byte 1"),
        ([1], "expected a JSON object, got list"),
        ({"text": "Hi"}, "missing field: expected one of 'messages', 'conversations', 'turns', 'prompt'"),
        ({"prompt": None}, "'prompt' with a value, got 'prompt': null"),
        ({"prompt": None, "turns": None}, "got 'turns': null, 'prompt': null"),
        (
            {"conversations": [{"from": "gpt", "value": "Hi"}, {"from": "human", "value": "Yes?"}]},
            "field conversations[0]: expected a user message before the first answer",
        ),
        ({"messages": [SYSTEM, ANSWER, USER]}, "field messages[1]: expected a user message before"),
        ({"prompt": ""}, "field 'prompt': expected a string that is not empty"),
        ({"prompt": ["Hi"]}, "field 'prompt': expected a string that is not empty, got list"),
        ({"turns": "Hi"}, "field 'turns': expected a list"),
        ({"turns": ["Hi", 3]}, r"field turns[1]: expected a string, got integer '3'"),
        ({"messages": []}, "field 'messages': expected a list that is not empty"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "field messages[0].role: expected one of"),
        ({"messages": [{"role": "user"}]}, "field messages[0].content: expected a string, got nothing"),
        ({"messages": [ANSWER]}, "field 'messages': expected a user message"),
        (
            {"conversations": [{"from": "alien", "value": "x"}]},
            "field conversations[0].from: expected one of",
        ),
        ({"prompt": "Hi", "id": True}, "field 'id': expected a string or an integer, got boolean"),
        ({"prompt": "Hi", "id": 1.5}, "field 'id': expected a string or an integer, got number"),
        ({"prompt": "Hi", "tools": "{"}, "field 'tools': expected JSON"),
        ({"prompt": "Hi", "tools": {"a": 1}}, "field 'tools': expected a list of objects"),
    ],
)
def test_malformed_records(data: Any, message: str) -> None:
    """A malformed record says file:line, expected and got."""
    record = read(data)
    assert record.error.startswith("file.jsonl:7: ")
    assert message in record.error
    assert record.messages == ()


def sources(*names: Path | str, **options: Any) -> Sources:
    """Open prompt files."""
    return open_sources(PromptsSpec(sources=[str(name) for name in names], **options))


def names(opened: Sources) -> list[str]:
    """Return every record's name."""
    return [record.name for record, _ in opened.scan()]


def test_files_folders_and_globs(tmp_path: Path, prompts: Callable[..., Path]) -> None:
    """Files come in the order given, folders and globs in name order; one that is named twice comes once."""
    prompts("b.jsonl", 1)
    prompts("a.jsonl", 1)
    prompts("deep/c.jsonl", 1)
    (tmp_path / "notes.txt").write_text("not a source")
    assert names(sources(tmp_path / "b.jsonl", tmp_path)) == ["b:q0", "a:q0", "c:q0"]
    assert names(sources(str(tmp_path / "*.jsonl"))) == ["a:q0", "b:q0"]
    assert names(sources(str(tmp_path / "**" / "*.jsonl"))) == ["a:q0", "b:q0", "c:q0"]


def test_equal_stems_are_told_apart(prompts: Callable[..., Path]) -> None:
    """Files of one stem get their folder's name in front, then a number."""
    paths = [prompts("x/q.jsonl", 1), prompts("y/q.jsonl", 1), prompts("z/y/q.jsonl", 1)]
    assert names(sources(*paths)) == ["q:q0", "y-q:q0", "q-2:q0"]


def test_planned_names_stay(prompts: Callable[..., Path]) -> None:
    """A source keeps its planned name when others come before it, and when its folder moves."""
    x, y = prompts("x/q.jsonl", 1), prompts("y/q.jsonl", 1)
    opened = sources(x, y)
    opened.know([("q", str(y))])
    assert opened.names == {str(y): "q", str(x): "x-q"}
    opened.know([("q", "/moved/away/q.jsonl")])
    assert opened.missing == {"q": "/moved/away/q.jsonl"}  # two files have that name: neither is taken for it
    moved = sources(x)
    moved.know([("old", "/moved/away/q.jsonl")])
    assert moved.names == {str(x): "old"}


def test_blank_lines_and_line_ends(tmp_path: Path) -> None:
    """A byte order mark, CRLF, blank lines and a last line without its end are fine; lines are counted."""
    path = tmp_path / "odd.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt":"a"}\r\n\r\n  \n{"prompt":"b"}')
    found = list(sources(path).scan())
    assert [(record.line, place.offset) for record, place in found] == [(1, 0), (4, 24)]
    assert not any(record.error for record, _ in found)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.jsonl", b"", r"empty\.jsonl: expected prompt records, got an empty file"),
        ("blank.jsonl", b"\n\n", r"blank\.jsonl: expected prompt records, got an empty file"),
        (
            "array.json",
            b'[{"prompt":"a"}]',
            r"array\.json:1: expected one JSON object a line, got a JSON array",
        ),
        ("torn.parquet", b"PAR1", r"torn\.parquet: expected a Parquet file"),
    ],
)
def test_whole_files_that_are_wrong(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    """A file that holds no records is an error that names it."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=message):
        names(sources(tmp_path / name))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nothing.jsonl", "expected a file, a folder or a glob, found nothing"),
        ("*.jsonl", "expected files that match"),
        ("folder", r"expected \.jsonl.* files below"),
        ("notes.txt", r"expected one of \.jsonl.*got '\.txt'"),
    ],
)
def test_sources_that_are_not_there(tmp_path: Path, source: str, message: str) -> None:
    """A source that matches nothing readable is an error before anything runs."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(SourceError, match=message):
        sources(tmp_path / source)


def test_unknown_field_names() -> None:
    """prompts.fields maps our names only."""
    with pytest.raises(JobError, match=r"prompts\.fields: expected our names .*got 'text'"):
        sources("x.jsonl", fields={"text": "chat"})


def test_parquet(tmp_path: Path) -> None:
    """Rows are records; nulls are absent; reading from a row skips whole row groups."""
    path = tmp_path / "rows.parquet"
    rows = [
        {"id": n, "messages": [USER | {"tool_calls": None}], "extra": None if n % 2 else n}
        for n in range(700)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=300)
    opened = sources(path)
    found = list(opened.scan())
    assert [record.record_id for record, _ in found] == [str(n) for n in range(700)]
    assert [record.metadata for record, _ in found[:2]] == ['{"extra":0}', "{}"]
    for first in (0, 299, 300, 555, 699):
        place = found[first][1]
        again = list(opened.scan({"rows": Mark(place.line, place.offset)}))
        assert [record.digest for record, _ in again] == [record.digest for record, _ in found[first:]]


def test_bad_row_stops_the_plan(tmp_path: Path, kit: Any) -> None:
    """By default nothing is planned when a line is malformed, and the message has file:line."""
    path = tmp_path / "bad.jsonl"
    path.write_text('{"prompt":"a"}\n{"prompt":}\n{"prompt":"c"}\n')
    spec = kit.job_spec(tmp_path, str(path))
    store = open_store(spec.store, spec.job_id)
    with pytest.raises(SourceError, match=r"bad\.jsonl:2: expected one JSON object"):
        extend_plan(Ledger(store, spec.job_id), open_sources(spec.prompts), spec, "r")
    assert list(store.list("plan/")) == []


def test_bad_row_can_be_planned_as_rejected(tmp_path: Path, kit: Any) -> None:
    """With on_bad_row: reject the record is planned, and read back with its error."""
    path = tmp_path / "bad.jsonl"
    path.write_text('{"prompt":"a"}\nnonsense\n{"id":"x","text":"c"}\n')
    spec = kit.job_spec(tmp_path, str(path), prompts={"on_bad_row": "reject"})
    opened = open_sources(spec.prompts)
    plan = extend_plan(Ledger(open_store(spec.store, spec.job_id), spec.job_id), opened, spec, "r")
    records = opened.read(plan.batches[0])
    assert [(r.record_id, bool(r.error)) for r in records] == [
        ("1", False),
        ("bad-line-2", True),
        ("x", True),
    ]


@pytest.mark.parametrize(
    ("turns", "data", "refused"),
    [
        pytest.param("last", {"turns": ["a", "b"]}, True, id="last-mt-bench"),
        pytest.param("each_recorded", {"turns": ["a", "b", "c"]}, True, id="each-recorded-mt-bench"),
        pytest.param("last", {"messages": [SYSTEM, USER, USER]}, True, id="last-two-questions"),
        pytest.param("last", {"turns": ["a"]}, False, id="last-one-turn"),
        pytest.param("last", {"messages": [USER, ANSWER, USER]}, False, id="last-recorded"),
        pytest.param("each_recorded", {"messages": [USER, ANSWER, USER]}, False, id="each-recorded"),
        pytest.param("each", {"turns": ["a", "b"]}, False, id="each-mt-bench"),
        pytest.param("first", {"turns": ["a", "b"]}, False, id="first-mt-bench"),
    ],
)
def test_turns_on_recorded_history_need_one(
    tmp_path: Path, kit: Any, turns: str, data: dict[str, Any], refused: bool
) -> None:
    """Questions without a recorded answer would be sent as one prompt, one behind the other: a bad record."""
    path = tmp_path / "p.jsonl"
    path.write_bytes(orjson.dumps(data | {"id": "a"}) + b"\n")
    spec = kit.job_spec(tmp_path, str(path), prompts={"turns": turns, "on_bad_row": "reject"})
    opened = open_sources(spec.prompts)
    plan = extend_plan(Ledger(open_store(spec.store, spec.job_id), spec.job_id), opened, spec, "r")
    (record,) = opened.read(plan.batches[0])
    assert bool(record.error) is refused
    if refused:
        assert record.error.startswith(f"{path}:1: prompts.turns '{turns}' builds on recorded answers")
        assert "use each (answers are generated) or first" in record.error


@pytest.mark.parametrize("planned_first", [False, True], ids=["one-run", "appended"])
def test_ids_that_repeat(tmp_path: Path, prompts: Callable[..., Path], kit: Any, planned_first: bool) -> None:
    """A record id that repeats in its source is refused with both lines, also when the file grew."""
    path = prompts(rows=25)
    spec = kit.job_spec(tmp_path, str(path))
    ledger = Ledger(open_store(spec.store, spec.job_id), spec.job_id)
    if planned_first:
        extend_plan(ledger, open_sources(spec.prompts), spec, "r")
    with path.open("a") as file:
        file.write('{"id":"q7","prompt":"again"}\n')
    with pytest.raises(
        SourceError, match=r"questions\.jsonl:26: .*'q7' again \(first at .*questions\.jsonl:8\)"
    ):
        extend_plan(ledger, open_sources(spec.prompts), spec, "r")


def test_equal_ids_in_two_sources_are_fine(tmp_path: Path, prompts: Callable[..., Path], kit: Any) -> None:
    """The source is part of the row id."""
    spec = kit.job_spec(tmp_path, str(prompts("a.jsonl")), str(prompts("b.jsonl")))
    plan = extend_plan(
        Ledger(open_store(spec.store, spec.job_id), spec.job_id), open_sources(spec.prompts), spec, "r"
    )
    assert plan.records == 50


@pytest.mark.parametrize("change", ["edit", "insert", "cut", "gone"])
def test_a_changed_source_is_noticed(
    tmp_path: Path, prompts: Callable[..., Path], kit: Any, change: str
) -> None:
    """A planned batch is read only if its records are what was planned."""
    path, other = prompts(rows=25), prompts("other.jsonl", 1)
    spec = kit.job_spec(tmp_path, str(path), str(other))
    ledger = Ledger(open_store(spec.store, spec.job_id), spec.job_id)
    plan = extend_plan(ledger, open_sources(spec.prompts), spec, "r")
    text = path.read_text()
    if change == "edit":
        path.write_text(text.replace("What is 12+12?", "What is 13+12?"))
    elif change == "insert":
        path.write_text('{"id":"new","prompt":"x"}\n' + text)
    elif change == "cut":
        path.write_text("".join(text.splitlines(keepends=True)[:12]))
    opened = open_sources(spec.prompts if change != "gone" else PromptsSpec(sources=[str(other)]))
    opened.seal = (spec.job_id, "r")
    opened.know(plan.sources)
    with pytest.raises(SourceError, match=r"batch 1|questions\.jsonl:11"):
        opened.read(plan.batches[1])


@pytest.fixture
def remote(seaweed: Seaweed, s3_spec: StoreSpec, tmp_path: Path, prompts: Callable[..., Path]) -> StoreSpec:
    """Three prompt files in the bucket: a.jsonl, deep/b.jsonl, deep/c.parquet, and one that is none."""
    store = open_store(s3_spec, "", seaweed.credentials)
    store.put("in/a.jsonl", prompts("a.jsonl", 3).read_bytes())
    store.put("in/deep/b.jsonl", prompts("b.jsonl", 2).read_bytes())
    pq.write_table(
        pa.table({"id": range(500), "prompt": ["Hi"] * 500}), tmp_path / "c.parquet", row_group_size=99
    )
    store.put("in/deep/c.parquet", (tmp_path / "c.parquet").read_bytes())
    store.put("in/notes.txt", b"no prompts")
    store.close()
    return s3_spec


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ("in/a.jsonl", {"a": 3}),
        ("in", {"a": 3, "b": 2, "c": 500}),
        ("in/deep/", {"b": 2, "c": 500}),
        ("in/*/b.jsonl", {"b": 2}),
        ("in/*.jsonl", {"a": 3, "b": 2}),
    ],
    ids=["object", "prefix", "slash", "glob", "deep-glob"],
)
def test_sources_in_s3(seaweed: Seaweed, remote: StoreSpec, tail: str, expected: dict[str, int]) -> None:
    """An s3:// source is an object, a prefix or a glob; its records are those of the same local file."""
    spec = PromptsSpec(sources=[f"{remote.uri}/{tail}"])
    found = list(open_sources(spec, remote, seaweed.credentials).scan())
    counts: dict[str, int] = {}
    for record, _ in found:
        counts[record.source] = counts.get(record.source, 0) + 1
    assert counts == expected
    opened = open_sources(spec, remote, seaweed.credentials)
    middle = next(place for record, place in found if record.record_id in ("q1", "250"))
    source = found[-1][0].source
    assert len(list(opened.scan({source: Mark(middle.line, middle.offset)}))) > 0


def test_planned_from_s3(seaweed: Seaweed, remote: StoreSpec, tmp_path: Path, kit: Any) -> None:
    """A job over S3 sources plans, and reads any batch back by ranges."""
    spec = kit.job_spec(tmp_path, f"{remote.uri}/in/deep", batch={"rows": 100})
    opened = open_sources(spec.prompts, remote, seaweed.credentials)
    plan = extend_plan(Ledger(open_store(spec.store, spec.job_id), spec.job_id), opened, spec, "r")
    assert plan.records == 502
    again = open_sources(spec.prompts, remote, seaweed.credentials)
    again.know(plan.sources)
    again.seal = (spec.job_id, "r")
    assert [record.record_id for record in again.read(plan.batches[3])] == [str(n) for n in range(298, 398)]


def test_s3_sources_that_are_not_there(seaweed: Seaweed, remote: StoreSpec) -> None:
    """A prefix without prompt files, an absent object and an absent bucket are named."""
    with pytest.raises(SourceError, match=r"prompts\.sources\[0\]: expected prompt files at"):
        open_sources(PromptsSpec(sources=[f"{remote.uri}/nothing"]), remote, seaweed.credentials)
    gone = open_sources(PromptsSpec(sources=[f"{remote.uri}/gone.jsonl"]), remote, seaweed.credentials)
    with pytest.raises(SourceError, match=r"gone\.jsonl: expected an object, found none"):
        list(gone.scan())
    with pytest.raises(SurroundingsError, match="bucket does not exist"):
        open_sources(PromptsSpec(sources=["s3://no-such-bucket/x"]), remote, seaweed.credentials)


@pytest.mark.shared
def test_real_prompts(tmp_path: Path, kit: Any) -> None:
    """The 480 real prompts are understood, ids, turns and all."""
    folder = Path(__file__).resolve().parents[4] / "shared" / "data" / "prompts"
    found = list(sources(folder).scan())
    assert len(found) == 480
    assert not any(record.error for record, _ in found)
    assert {len(record.messages) for record, _ in found if record.source == "mt_bench"} == {2}
