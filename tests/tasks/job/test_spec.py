"""JobSpec: what a person may write, and what an error tells them."""

from pathlib import Path
from typing import Any

import pytest

from tasks.errors import JobError
from tasks.job.jobfile import build_job, load_job, with_settings
from tasks.job.spec import JobSpec, Section, SourceSpec

SMALLEST = {
    "name": "kimi-mtbench",
    "model": {"tokenizer": "./model"},
    "prompts": {"sources": ["prompts/*.jsonl"]},
    "servers": {"urls": ["http://127.0.0.1:30000"]},
    "store": {"uri": "out"},
}


def changed(path: str, value: object) -> dict[str, object]:
    """Return the smallest job with one dotted field set."""
    job = {key: dict(part) if isinstance(part, dict) else part for key, part in SMALLEST.items()}
    section, _, field = path.rpartition(".")
    target = job.setdefault(section, {}) if section else job
    assert isinstance(target, dict)
    target[field] = value
    return job


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        pytest.param("batch.rows", 0, ["batch.rows", "greater than or equal to 1", "got 0"], id="bound"),
        pytest.param("batch.rowz", 5, ["batch.rowz", "unknown field", "rows, in_flight"], id="unknown-field"),
        pytest.param("model.tokenizer", None, ["model.tokenizer", "string", "got null"], id="null"),
        pytest.param("prompts.turns", "all", ["prompts.turns", "'each'", 'got "all"'], id="choice"),
        pytest.param("sampling.top_k", 0, ["sampling.top_k", "-1 (all)", "got 0"], id="top-k-zero"),
        pytest.param("sampling.seed", 2**64, ["sampling.seed", "less than or equal"], id="seed-too-wide"),
        pytest.param("sampling.top_k", 2**31, ["sampling.top_k", "less than or equal"], id="top-k-too-wide"),
        pytest.param("sampling.max_new_tokens", True, ["max_new_tokens", "a number"], id="true-as-int"),
        pytest.param("batch.lease_seconds", True, ["lease_seconds", "a number", "true"], id="true-as-float"),
        pytest.param("sampling.temperature", float("nan"), ["sampling.temperature", "finite"], id="nan"),
        pytest.param("batch.lease_seconds", float("inf"), ["batch.lease_seconds", "finite"], id="infinity"),
        pytest.param("servers.urls", ["http://a:99999"], ["servers.urls", "[1, 65535]", "99999"], id="port"),
        pytest.param("servers.urls", ["http://a:1", "http://A:1/"], ["urls", "twice"], id="case-of-a-host"),
        pytest.param("servers.urls", ["http://a", "http://a:80"], ["urls", "twice"], id="default-port"),
        pytest.param("name", "Kimi Data", ["name", "pattern", "Kimi Data"], id="name"),
        pytest.param(
            "prompts.sources",
            ["a", 3],
            ["sources.1: expected an address or {uri, weight, name}, got 3"],
            id="source",
        ),
        pytest.param(
            "prompts.sources",
            [{"uri": "a", "weight": 0}],
            ["sources.0.weight: expected greater than 0, got 0"],
            id="source-weight",
        ),
        pytest.param(
            "prompts.sources",
            [{"uri": "a", "weigth": 1}],
            ["0.weigth: unknown field; expected uri, weight, name"],
            id="source-field",
        ),
        pytest.param(
            "prompts.sources",
            [{"weight": 1}],
            ["prompts.sources.0.uri: required, got nothing"],
            id="source-uri",
        ),
        pytest.param(
            "prompts.sources",
            [{"uri": "a", "name": "n"}, {"uri": "b", "name": "n"}],
            ["given to two sources"],
            id="source-names",
        ),
        pytest.param("servers.urls", ["127.0.0.1:1"], ["servers.urls", "http://host:port"], id="url-scheme"),
        pytest.param(
            "servers.urls", ["http://a:1", "http://a:1/"], ["servers.urls", "listed twice"], id="url-twice"
        ),
    ],
)
def test_a_wrong_field_is_named(path: str, value: object, expected: list[str]) -> None:
    """The message holds the origin, the field's path, what was expected and what came."""
    with pytest.raises(JobError) as caught:
        build_job(changed(path, value), "job.yaml")
    for part in ["job.yaml: ", *expected]:
        assert part in str(caught.value)


def test_a_wrong_source_gives_one_line() -> None:
    """A source has two forms; an error is about the one that was written."""
    with pytest.raises(JobError) as caught:
        build_job(changed("prompts.sources", [{"uri": "a", "weight": "much"}]), "job.yaml")
    assert len(str(caught.value).splitlines()) == 1


def test_the_form_knows_both_forms_of_a_source() -> None:
    """Prefect's run form understands `anyOf` of a string and a section, and no other union."""
    schema = JobSpec.model_json_schema()
    items = schema["$defs"]["PromptsSpec"]["properties"]["sources"]["items"]
    address, section = items["anyOf"]
    assert address["type"] == "string"
    assert section == {"$ref": "#/$defs/SourceSpec"}
    assert list(schema["$defs"]["SourceSpec"]["properties"]) == ["uri", "weight", "name"]
    job = build_job(changed("prompts.sources", ["a", {"uri": "b", "weight": 2, "name": "n"}]), "job")
    assert build_job(job.model_dump(mode="json"), "job") == job


@pytest.mark.parametrize(
    ("path", "value"),
    [
        pytest.param("store.endpoint_url", "http://ak:hunter2@h:9", id="endpoint"),
        pytest.param("servers.urls", ["http://u:hunter2@h:1"], id="server"),
        pytest.param("store.uri", "s3://ak:hunter2@bucket/x", id="store"),
        pytest.param("prompts.sources", ["s3://ak:hunter2@bucket/x"], id="source"),
        pytest.param("prompts.sources", [{"uri": "s3://ak:hunter2@bucket/x"}], id="named-source"),
        pytest.param("prompts.exclude", ["s3://ak:hunter2@bucket/x"], id="excluded"),
        pytest.param("store.uri", "s3://ak:hun/ter2/hunter2@bucket/x", id="store-slash-in-secret"),
        pytest.param("prompts.exclude", ["s3://ak:hun/hunter2@bucket/x"], id="excluded-slash"),
        pytest.param("servers.urls", ["http://h:1/?token=hunter2"], id="query-of-a-server"),
    ],
)
def test_a_secret_in_an_address_is_refused_and_not_shown(path: str, value: object) -> None:
    """Credentials do not belong into a job file, and the refusal does not repeat them."""
    with pytest.raises(JobError) as caught:
        build_job(changed(path, value), "job.yaml")
    assert path in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        pytest.param("store.uri", "/data/a@b", id="folder"),
        pytest.param("store.uri", "file:///data/a@b", id="file"),
        pytest.param("store.uri", "s3://bucket", id="bucket"),
        pytest.param("prompts.sources", ["s3://bucket/a?/*", "hf:///data/a@b", "a@b.jsonl"], id="source"),
    ],
)
def test_an_address_may_hold_an_at_sign_where_no_secret_stands(path: str, value: object) -> None:
    """Folders and globs are not mistaken for addresses with credentials."""
    build_job(changed(path, value), "job.yaml")


def test_all_wrong_fields_are_named_at_once() -> None:
    """Two mistakes give two lines, so that a person mends the file once."""
    job = changed("batch.rows", 0)
    del job["store"]
    with pytest.raises(JobError) as caught:
        build_job(job, "job.yaml")
    assert len(str(caught.value).splitlines()) == 2
    assert "store: required, got nothing" in str(caught.value)


def test_remote_code_needs_a_revision() -> None:
    """A hub tokenizer's own code runs only at a pinned revision."""
    job = changed("model.trust_remote_code", True)
    job["model"] = {"tokenizer": "moonshotai/Kimi-K2.5", "trust_remote_code": True}
    with pytest.raises(JobError, match=r"^job\.yaml: model\.trust_remote_code .* give model\.revision too$"):
        build_job(job, "job.yaml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("name: [", ":1: expected YAML", id="torn-yaml"),
        pytest.param("- a\n- b\n", 'expected sections (name, model, prompts, …), got ["a","b"]', id="list"),
        pytest.param("", "got null", id="empty"),
        pytest.param("name: a\nmodel: {}\nname: b\n", ":3: expected YAML or JSON, got: 'name'", id="twice"),
        pytest.param(
            '{"batch": {"rows": 5,\n"rows": 6}}', ":2: expected YAML or JSON, got: 'rows'", id="json"
        ),
    ],
)
def test_a_malformed_file_is_named(tmp_path: Path, text: str, expected: str) -> None:
    """A file that is no job says which file, where, and what it holds."""
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(JobError) as caught:
        load_job(path)
    assert str(path) in str(caught.value)
    assert expected in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A path that does not exist is an error with that path."""
    with pytest.raises(JobError, match=r"absent\.yaml: cannot read"):
        load_job(tmp_path / "absent.yaml")


def test_settings_override_the_file(tmp_path: Path) -> None:
    """`--set path=value` reaches nested fields and reads YAML values."""
    path = tmp_path / "job.yaml"
    path.write_text(
        "name: a\nmodel: {tokenizer: ./m}\nprompts: {sources: [a]}\nservers: {urls: ['http://h:1']}\n"
        "store: {uri: out}\n"
    )
    job = load_job(path, ["batch.rows=256", "model.template_args={thinking: true}"])
    assert job.batch.rows == 256
    assert job.model.template_args == {"thinking": True}


def test_settings_reach_items_of_lists(tmp_path: Path) -> None:
    """`servers.urls.0` is the first item; a number that is not there is refused with those that are."""
    data: dict[str, Any] = {"servers": {"urls": ["http://h:1", "http://h:2"]}, "prompts": {"sources": [{}]}}
    with_settings(data, ["servers.urls.1=http://h:3", "prompts.sources.0.uri=a.jsonl"])
    assert data["servers"]["urls"] == ["http://h:1", "http://h:3"]
    assert data["prompts"]["sources"] == [{"uri": "a.jsonl"}]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        pytest.param("servers.urls.2=a", "an item of servers.urls (0 to 1), got '2'", id="behind-the-end"),
        pytest.param("servers.urls.-1=a", "(0 to 1), got '-1'", id="negative"),
        pytest.param("servers.urls.first=a", "(0 to 1), got 'first'", id="no-number"),
        pytest.param("name.x=1", 'name is "t", not a section or a list', id="through-text"),
        pytest.param("servers.urls.0.x=1", "servers.urls.0 is", id="through-an-item"),
        pytest.param("batch.rows", "expected path=value", id="no-value"),
        pytest.param("batch..rows=1", "expected path=value", id="empty-part"),
        pytest.param("batch.rows=[", "expected a YAML value", id="torn-value"),
    ],
)
def test_a_setting_that_leads_nowhere_is_named(setting: str, expected: str) -> None:
    """The message repeats the setting, but not a secret in it, and says what is there."""
    data: dict[str, Any] = {"name": "t", "servers": {"urls": ["http://h:1", "http://h:2"]}}
    with pytest.raises(JobError) as caught:
        with_settings(data, [setting])
    assert str(caught.value).startswith(f"--set {setting}")
    assert expected in str(caught.value)
    with pytest.raises(JobError) as caught:
        with_settings(data, ["name.x=http://u:hunter2@h"])
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value", "moves"),
    [
        pytest.param("sampling.temperature", 0.5, True, id="temperature"),
        pytest.param("sampling.seed", 7, True, id="seed"),
        pytest.param("model.template_args", {"thinking": False}, True, id="template-args"),
        pytest.param("policy.accept", "intact", True, id="policy"),
        pytest.param("prompts.turns", "last", True, id="turns"),
        pytest.param("name", "other", True, id="name"),
        pytest.param("servers.urls", ["http://127.0.0.1:30001"], False, id="urls"),
        pytest.param("prompts.limit", 10, False, id="limit"),
        pytest.param("prompts.sources", ["b.jsonl"], False, id="sources"),
        pytest.param("prompts.sources", [{"uri": "b.jsonl", "weight": 2}], False, id="weights"),
        pytest.param("prompts.duplicates", "keep", False, id="duplicates"),
        pytest.param("prompts.exclude", ["eval.jsonl"], False, id="exclude"),
        pytest.param("batch.rows", 10, False, id="batch"),
        pytest.param("store.uri", "elsewhere", False, id="store"),
        pytest.param("policy.accepted_floor", 0.5, False, id="floor"),
    ],
)
def test_job_id_covers_what_can_change_a_token(path: str, value: object, moves: bool) -> None:
    """Identity fields move `job_id`; URLs, windows, timeouts, sources and limits do not (decisions 5)."""
    before = build_job(SMALLEST, "job").job_id
    after = build_job(changed(path, value), "job").job_id
    assert (before != after) is moves


def test_job_id_is_pinned() -> None:
    """A stored dataset is found again: the id of this job must never change between versions."""
    assert build_job(SMALLEST, "job").job_id == "kimi-mtbench-23f4a4c2537e"


def _sections(section: type[Section]) -> list[type[Section]]:
    inner = [f.annotation for f in section.model_fields.values() if isinstance(f.annotation, type)]
    own = [SourceSpec] if section is JobSpec else []
    return [section, *own, *(s for part in inner if issubclass(part, Section) for s in _sections(part))]


@pytest.mark.parametrize("section", _sections(JobSpec), ids=lambda s: s.__name__)
def test_every_field_explains_itself(section: type[Section]) -> None:
    """Each field of the form has a description and its own position, in order."""
    fields = section.model_fields.values()
    assert all(f.description for f in fields)
    positions = [f.json_schema_extra["position"] for f in fields]  # type: ignore[index]
    assert positions == sorted(set(positions))
