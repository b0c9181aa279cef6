"""Job files and the `job_id` that commit 7993c23 gave them: by it a stored dataset is found again."""

from pathlib import Path

import pytest
import yaml

from tasks.job.jobfile import load_job
from tests.compatibility.stored import DATA

SMALLEST = {
    "name": "name: t\n",
    "model": "model: {tokenizer: ./model}\n",
    "prompts": "prompts: {sources: [p.jsonl]}\n",
    "servers": 'servers: {urls: ["http://127.0.0.1:30000"]}\n',
    "store": "store: {uri: out}\n",
}
"""Sections that a job must have; a text of the tables stands for these and its own in their place."""

MOVED = [
    ("", "t-59a51e602942", "smallest"),
    ("name: kimi-mtbench.v2_x", "kimi-mtbench.v2_x-20de1a4ceee9", "name"),
    ("model: {tokenizer: ./other}", "t-194af1c530a5", "tokenizer"),
    (
        "model: {tokenizer: org/model-7b, revision: v1.0, trust_remote_code: true}",
        "t-fe6cd63715e7",
        "revision-and-code",
    ),
    ("model: {tokenizer: ./model, template_args: {thinking: false}}", "t-90a288a70b17", "template-args"),
    (
        "model: {tokenizer: ./model, template_args: {b: [1, 2.5, null], a: {d: „ja“, c: true}}}",
        "t-ea0fbc181cdc",
        "template-args-nested",
    ),
    ("model: {tokenizer: ./model, control_tokens: as_text}", "t-05761b98f5d4", "control-tokens"),
    (
        "model: {tokenizer: ./model, grammar: {family: chatml, opener: <muse>, closer: </muse>, "
        "thinking: open, end: [<done>, 262], turn_starts: [<turn>], tool_begin: <do>, tool_end: </do>, "
        "plain: [<pad>], trim: true}}",
        "t-f2b0ac92296f",
        "grammar",
    ),
    ("prompts: {sources: [p.jsonl], turns: last}", "t-847d4cdf6c39", "turns-last"),
    ("prompts: {sources: [p.jsonl], turns: first}", "t-29dd06320bd4", "turns-first"),
    ("prompts: {sources: [p.jsonl], turns: each_recorded}", "t-665e1d612ed9", "turns-recorded"),
    ("prompts: {sources: [p.jsonl], fields: {messages: chat, id: key}}", "t-06d371be6792", "fields"),
    ("sampling: {temperature: 0}", "t-bf1ed1ff0de1", "greedy"),
    (
        "sampling: {temperature: 0.6, top_p: 0.95, top_k: 20, min_p: 0.05, repetition_penalty: 1.05, "
        "max_new_tokens: 32768}",
        "t-39033f4e3d9c",
        "sampling",
    ),
    ("sampling: {top_k: -1, top_p: 1}", "t-79e99d8f93e2", "sampling-open"),
    ("sampling: {samples: 4}", "t-563e260a2a01", "samples"),
    ("sampling: {seed: 18446744073709551615}", "t-6b9472cae46f", "seed"),
    (
        "sampling: {mix: [{weight: 3, temperature: 0.6}, {name: hot, temperature: 1.0}]}",
        "t-e801fbf575aa",
        "mix",
    ),
    (
        "sampling: {mix: [{name: hot, temperature: 1.0}, {weight: 3, temperature: 0.6}]}",
        "t-bec83a3f252e",
        "mix-in-another-order",
    ),
    (
        "sampling: {mix: [{name: on, template_args: {thinking: true}, max_new_tokens: 8192}, "
        "{name: off, weight: 0.25, template_args: {thinking: false}, top_p: 0.8}]}",
        "t-a91de03c5a7d",
        "mix-of-template-args",
    ),
    ("policy: {accept: intact}", "t-e0ca86025f04", "accept"),
    ("policy: {on_length: reject}", "t-f72a2bc1f907", "on-length"),
    ("policy: {on_length: continue, rounds: 8}", "t-e1658295cba7", "rounds"),
    ("tools: {match: position}", "t-4e71c491eb63", "tools"),
    (
        "model: {tokenizer: ./model, template_args: {thinking: true}, control_tokens: as_text}\n"
        "prompts: {sources: [p.jsonl], turns: last, fields: {messages: chat}}\n"
        "sampling: {temperature: 1, seed: 7, samples: 2}\n"
        "policy: {accept: intact, on_length: reject}\n"
        "tools: {match: name}",
        "t-77aae8a7c1ea",
        "many",
    ),
]
"""(text, job_id, what it is): jobs of different tokens."""

EQUAL = [
    (
        'servers: {urls: ["https://a:1", "http://b:2/v"], api_key_env: KEY, restart: command, '
        "restart_commands: {restart: again}, reasoning_parser: allow_if_faithful, ready_timeout_seconds: 9, "
        "also_remove: [tool_call_parser], restart_busy: true}",
        "smallest",
        "servers",
    ),
    (
        "prompts: {sources: [{uri: a.jsonl, weight: 2, name: a}, s3://bucket/b/*.parquet], limit: 7, "
        "on_bad_row: reject, duplicates: keep, exclude: [eval.jsonl]}",
        "smallest",
        "sources",
    ),
    (
        "batch: {rows: 16, in_flight: 4, journal_dir: j, journal_upload_seconds: 60, lease_seconds: 5, "
        "render_processes: 2, journal_gigabytes: 1}",
        "smallest",
        "batch",
    ),
    (
        "store: {uri: s3://bucket/prefix, endpoint_url: http://h:9, region: eu-1, addressing_style: path, "
        "checksums: when_required, credentials_block: keys, deadline_seconds: 9}",
        "smallest",
        "store",
    ),
    ("policy: {max_attempts: 9, accepted_floor: 0.5}", "smallest", "attempts-and-floor"),
    ("sampling: {logprobs_share: 0.25}", "smallest", "logprobs-share"),
    (
        "model: {tokenizer: ./model, revision: null, trust_remote_code: false, template_args: {}, "
        "control_tokens: refuse, grammar: {}}\n"
        "prompts: {sources: [p.jsonl], turns: each, fields: {}}\n"
        "sampling: {temperature: null, top_p: null, top_k: null, min_p: null, repetition_penalty: null, "
        "max_new_tokens: null, samples: 1, seed: 0, mix: []}\n"
        "policy: {accept: canonical, on_length: keep, rounds: 4}\n"
        "tools: {match: name_args}",
        "smallest",
        "defaults-written-out",
    ),
    ("sampling: {temperature: 0.0, seed: 0, samples: 1}", "greedy", "greedy-as-a-fraction"),
    ("sampling: {top_p: 1.0, top_k: -1}", "sampling-open", "fields-in-another-order"),
    (
        "model: {template_args: {a: {c: true, d: „ja“}, b: [1, 2.5, null]}, tokenizer: ./model}",
        "template-args-nested",
        "template-args-in-another-order",
    ),
    (
        "policy: {rounds: 8, on_length: continue, accepted_floor: 0}\nbatch: {rows: 1}",
        "rounds",
        "rounds-and-what-does-not-count",
    ),
]
"""(text, which job of the other table has the same `job_id`, what it is)."""

IDENTITY = {
    "name",
    *(f"model.{name}" for name in ("tokenizer", "revision", "trust_remote_code", "template_args")),
    *("model.control_tokens", "model.grammar", "prompts.turns", "prompts.fields", "tools.match"),
    *(f"sampling.{name}" for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")),
    *(f"sampling.{name}" for name in ("max_new_tokens", "samples", "seed", "mix")),
    *(f"policy.{name}" for name in ("accept", "on_length", "rounds")),
}
"""The fields that 7993c23 hashed."""


def job_file(folder: Path, text: str) -> Path:
    """Write a job file: a text of the tables, and the smallest job's sections that are not in it."""
    given = yaml.safe_load(text) or {}
    path = folder / "job.yaml"
    rest = "".join(line for section, line in SMALLEST.items() if section not in given)
    path.write_text(f"{text}\n{rest}", encoding="utf-8")
    return path


@pytest.mark.parametrize(("text", "job_id"), [pytest.param(*row[:2], id=row[2]) for row in MOVED])
def test_job_ids_are_as_they_were(tmp_path: Path, text: str, job_id: str) -> None:
    """The literal id, whatever later versions add."""
    assert load_job(job_file(tmp_path, text)).job_id == job_id


@pytest.mark.parametrize(("text", "same"), [pytest.param(*row[:2], id=row[2]) for row in EQUAL])
def test_what_changes_no_token_changes_no_id(tmp_path: Path, text: str, same: str) -> None:
    """Servers, sources, sizes, stores, defaults and the order of fields are not part of it."""
    expected = {name: job_id for _, job_id, name in MOVED}[same]
    assert load_job(job_file(tmp_path, text)).job_id == expected


def test_the_table_names_every_field_of_the_identity(tmp_path: Path) -> None:
    """Each field that was hashed is away from its default in some job, and no two jobs have one id."""
    jobs = [load_job(job_file(tmp_path, text)) for text, _, _ in MOVED]
    assert {name for job in jobs for name in job.identity()} == IDENTITY
    assert len({job.job_id for job in jobs}) == len(MOVED) >= 20


@pytest.mark.parametrize("path", sorted(DATA.glob("*/job.yaml")), ids=lambda path: path.parent.name)
def test_job_files_find_their_stores(path: Path) -> None:
    """The job file of each stored dataset still leads to the folder that 7993c23 made for it."""
    assert (path.parent / "store" / load_job(path).job_id / "job.json").is_file()
