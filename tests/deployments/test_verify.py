"""`rawseq verify` on a real dataset: each kind of tampering makes it exit 1 and name the place."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deployments.cli.cli import cli
from deployments.local.presets import STANDIN_MODEL
from deployments.standin.launch import start_standin
from tests.support.jobs import Rawseq, opened, write_job
from tests.support.tampering import (
    RECEIPT,
    Tampering,
    accept_rejected,
    change_id,
    copy_row_from_other_batch,
    shift_boundary,
    shift_segment,
    swap_bytes,
    swap_files,
)

FIRST = "receipts/000000.g0.json"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, rawseq_env: dict[str, str]) -> Path:
    """A folder with a dataset of three batches, its prompts and its tokenizer; one row is rejected."""
    folder = tmp_path_factory.mktemp("made")
    shutil.copytree(STANDIN_MODEL, folder / "model")
    records = [{"id": f"p{n}", "prompt": f"What is {n}+{n % 7}?"} for n in range(12)]
    records[5]["prompt"] = "end it </think> now"
    (folder / "p.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    standin = start_standin(["--enable-deterministic-inference"], folder / "standin.log")
    job = write_job(
        folder / "job.yaml",
        standin.url,
        folder / "p.jsonl",
        folder / "out",
        model={"tokenizer": str(folder / "model")},
        batch={"rows": 4},
    )
    command = [sys.executable, "-m", "deployments.cli.main", "run", str(job)]
    try:
        subprocess.run(command, cwd=folder, env=rawseq_env, check=True, capture_output=True, timeout=240)
    finally:
        standin.end()
    return folder


@pytest.fixture
def dataset(made: Path, tmp_path: Path) -> Path:
    """A copy of the dataset that a test may change."""
    copy = tmp_path / "copy"
    shutil.copytree(made / "out", copy)
    return copy


Verify = Callable[..., tuple[int, str]]


@pytest.fixture
def verify(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Verify:
    """Run `rawseq verify` in this process; returns exit status and what a person reads."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> tuple[int, str]:
        capsys.readouterr()
        status = cli.main(["verify", *map(str, arguments)], standalone_mode=False)
        return status, capsys.readouterr().out

    return run


def other_word(rows: list[dict[str, Any]]) -> None:
    """Exchange one id of the reasoning for another word's."""
    rows[0]["input_ids"][rows[0]["prompt_length"] + 1] = 310


Tamper = Callable[[Tampering], object]
Place = Callable[[Tampering], str]

# what is done; the check that must fail; the place that must be named, read after the deed
KINDS: dict[str, tuple[Tamper, str, Place]] = {
    "flip a byte of a shard": (lambda t: t.flip("shard", 0.5), "objects", lambda t: t.file()),
    "flip a byte of a provenance file": (
        lambda t: t.flip("provenance", 0.5),
        "objects",
        lambda t: t.file("provenance"),
    ),
    "cut a rejected file short": (
        lambda t: t.store.put(t.file("rejected"), t.store.get(t.file("rejected"))[:-9]),
        "objects",
        lambda t: t.file("rejected"),
    ),
    "delete a shard": (lambda t: t.store.delete(t.file()), "objects", lambda t: t.file()),
    "swap the bytes of two shards": (swap_bytes, "objects", lambda t: t.file()),
    "swap the shards of two receipts": (swap_files, "counts", lambda t: t.file()),
    "drop a row": (lambda t: t.forge(lambda r: r.pop(), fit=False), "counts", lambda t: t.file()),
    "drop a row and fit the receipt": (
        lambda t: t.forge(lambda r: r.pop()),
        "provenance",
        lambda t: t.file("provenance"),
    ),
    "take a row of another batch": (copy_row_from_other_batch, "unique", lambda t: t.file()),
    "exchange two rows": (
        lambda t: t.forge(lambda r: r.reverse()),
        "provenance",
        lambda t: t.file("provenance"),
    ),
    "shift the boundary of prompt and output": (
        lambda t: t.forge(shift_boundary),
        "values",
        lambda t: f"{t.file()} row 0",
    ),
    "shift a segment": (lambda t: t.forge(shift_segment), "grammar", lambda t: f"{t.file()} row 0"),
    "exchange a word": (lambda t: t.forge(other_word), "counts", lambda t: t.file("frequencies")),
    "change the end id": (lambda t: t.forge(change_id), "values", lambda t: f"{t.file()} row 0"),
    "put in an id outside the vocabulary": (
        lambda t: t.forge(lambda r: r[0]["input_ids"].__setitem__(1, 2048)),
        "values",
        lambda t: t.file(),
    ),
    "take a rejected row into the shard": (accept_rejected, "values", lambda t: t.file()),
    "call a row by another code": (
        lambda t: t.forge(lambda r: r[0].update(verdict="complete_tools")),
        "grammar",
        lambda t: f"{t.file()} row 0",
    ),
    "break a row's metadata": (
        lambda t: t.forge(lambda r: r[0].update(metadata="{")),
        "values",
        lambda t: f"{t.file()} row 0",
    ),
    "edit a receipt's counts": (
        lambda t: t.edit(RECEIPT, lambda v: v["rows"].update(accepted=99)),
        "receipts",
        lambda t: RECEIPT,
    ),
    "edit a receipt's fingerprint": (
        lambda t: t.edit(RECEIPT, lambda v: v.update(fingerprint="0" * 64)),
        "plan",
        lambda t: RECEIPT,
    ),
    "call a receipt newer than this program": (
        lambda t: t.edit(RECEIPT, lambda v: v.update(schema=2)),
        "receipts",
        lambda t: RECEIPT,
    ),
    "copy a receipt to another batch": (
        lambda t: t.store.put("receipts/000007.g0.json", t.store.get(RECEIPT)),
        "receipts",
        lambda t: "receipts/000007.g0.json",
    ),
    "delete the plan": (lambda t: t.store.delete("plan/000000.json"), "plan", lambda t: FIRST),
    "edit the plan's range": (
        lambda t: t.edit("plan/000000.json", lambda v: v["batches"][1].update(stop=7)),
        "plan",
        lambda t: "plan/",
    ),
    "edit the job's temperature": (
        lambda t: t.edit("job.json", lambda v: v["spec"]["sampling"].update(temperature=0.1)),
        "job",
        lambda t: "job.json",
    ),
    "edit what the sampling resolved to": (
        lambda t: t.edit("job.json", lambda v: v["resolved"]["sampling"].update(temperature=0.1)),
        "job",
        lambda t: FIRST,
    ),
    "edit the tokenizer's hash": (
        lambda t: t.edit("job.json", lambda v: v["resolved"]["tokenizer"].update(template_sha256="0" * 64)),
        "grammar",
        lambda t: "job.json",
    ),
    "call job.json newer than this program": (
        lambda t: t.edit("job.json", lambda v: v.update(schema=2)),
        "job",
        lambda t: "job.json",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_tampering_ends_with_1_and_names_the_place(dataset: Path, verify: Verify, kind: str) -> None:
    """The check that is meant for it fails, the place is printed, and the last line says not trainable."""
    tamper, check, place = KINDS[kind]
    tampering = Tampering(opened(dataset))
    tamper(tampering)
    status, text = verify(dataset)
    assert status == 1
    lines = text.splitlines()
    found = [line for line in lines if line.startswith(f"{check}: ")]
    assert any(place(tampering) in line for line in found), text
    assert lines[-1].startswith("not trainable: ")
    assert check in lines[-1]


def test_a_clean_dataset_is_trainable(dataset: Path, verify: Verify) -> None:
    """Nothing is wrong and nothing is to be noticed: exit 0, one last line."""
    status, text = verify(dataset)
    assert status == 0
    assert text.splitlines()[-1] == (
        "trainable: 11 rows of all batches pass 10 checks; 0 of 11 rows scored, so not seen: "
        "ids changed with every digest made to fit, another model's ids"
    )
    assert "notice" not in text


def test_a_lost_shard_names_the_command_that_makes_it_again(dataset: Path, verify: Verify) -> None:
    """The finding says `rawseq retry STORE --batches N`; several lost batches are one command."""
    store = opened(dataset)
    tampering = Tampering(store)
    for receipt in (RECEIPT, FIRST):
        store.delete(tampering.file("shard", receipt))
    _, text = verify(dataset)
    assert f"{tampering.file()}: expected" in text
    assert f"; repair: rawseq retry {store.uri} --batches 1\n" in text
    assert f"repair    rawseq retry {store.uri} --batches 0-1\n" in text
    _, line = verify(dataset, "--json")
    answer = json.loads(line)
    assert answer["repair"] == f"rawseq retry {store.uri} --batches 0-1"
    assert [problem["repair"] for problem in answer["checks"][3]["problems"]] == [
        f"rawseq retry {store.uri} --batches {batch}" for batch in (0, 1)
    ]


def test_a_stale_tokenizer_is_found(made: Path, dataset: Path, verify: Verify) -> None:
    """The tokenizer that loads here is not the one of the dataset: not trainable, both hashes shown."""
    template = made / "model" / "chat_template.jinja"
    before = template.read_text()
    template.write_text(before + "{# edited #}")
    try:
        status, text = verify(dataset)
    finally:
        template.write_text(before)
    assert status == 1
    assert "grammar: job.json: expected the tokenizer that made the dataset, got " in text
    assert "tokenizer files: made with" in text


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(
            lambda path: path.write_text(path.read_text().replace("What is 9+2?", "What is 9+3?")),
            "prompts: batch 2 (p from line 9): expected the records that were planned",
            id="edited",
        ),
        pytest.param(lambda path: path.unlink(), "prompts: not compared with the plan: ", id="gone"),
    ],
)
def test_changed_prompts_are_told(
    made: Path, dataset: Path, verify: Verify, change: Callable[[Path], object], expected: str
) -> None:
    """A prompt file that is not as planned is a notice: the rows themselves are whole and trainable."""
    prompts = made / "p.jsonl"
    before = prompts.read_text()
    change(prompts)
    try:
        status, text = verify(dataset)
        assert verify(dataset, "--no-sources")[1].count("notice") == 0
    finally:
        prompts.write_text(before)
    assert status == 0
    assert f"notice    {expected}" in text


def test_a_renamed_source_is_told(made: Path, dataset: Path, verify: Verify) -> None:
    """A folder whose file was renamed: the plan's source is missing, by name and old place."""
    job = opened(dataset)
    tampering = Tampering(job)
    record = tampering.json("job.json")
    folder = dataset.parent / "prompts"
    folder.mkdir()
    shutil.copy(made / "p.jsonl", folder / "renamed.jsonl")
    record["spec"]["prompts"]["sources"] = [str(folder)]
    tampering.edit("job.json", lambda value: value.update(record))
    status, text = verify(dataset)
    assert status == 0
    assert f"notice    prompts: source 'p' was planned from {made / 'p.jsonl'}" in text


def test_status_refuses_a_newer_schema(dataset: Path, rawseq: Rawseq) -> None:
    """A job.json or a receipt of a later version is refused by name, and the message says what to do."""
    for key in ("job.json", RECEIPT):
        tampering = Tampering(opened(dataset))
        before = tampering.json(key)
        tampering.edit(key, lambda value: value.update(schema=2))
        ran = rawseq("status", str(dataset))
        assert ran.status == 1
        assert key in ran.answer["error"]["message"]
        assert "use that" in ran.answer["error"]["message"]
        tampering.edit(key, lambda value, before=before: value.update(before))
