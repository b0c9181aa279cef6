"""`rawseq verify --rescore`: corruptions that no digest, count or grammar can see, on the embedded server."""

import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deployments.cli.cli import cli
from deployments.local.presets import STANDIN_MODEL
from deployments.standin.launch import free_port, start_standin
from tasks.dataset.shard_reader import decode_provenance
from tasks.errors import JobError, SurroundingsError
from tasks.job.spec import ModelSpec
from tasks.store.contract import ObjectStore
from tasks.tokenizer.vocabulary import load_vocabulary
from tests.support.forked import Template
from tests.support.jobs import opened, write_job
from tests.support.tampering import Tampering, plant

ROWS = 24
TOPICS = ("lighthouse", "river", "bridge", "garden")


@attrs.frozen(slots=True)
class Made:
    """A dataset of three batches, half its rows with kept log probabilities, and the server that made it."""

    url: str
    store: Path


def write_records(path: Path) -> Path:
    """Write prompts whose answers have words in them, each another one."""
    prompts = [
        f"What is a {TOPICS[n % 4]}?"
        if n % 2
        else f"Tom picks {n + 2} cards, then {n % 5 + 1} more. How many?"
        for n in range(ROWS)
    ]
    lines = [json.dumps({"id": f"p{n}", "prompt": f"{text} ({n})"}) for n, text in enumerate(prompts)]
    path.write_text("\n".join(lines) + "\n")
    return path


def run_job(folder: Path, env: dict[str, str], url: str, name: str, **sampling: Any) -> Path:
    """Run a job of three batches and return its store."""
    job = write_job(
        folder / f"{name}.yaml",
        url,
        write_records(folder / "p.jsonl"),
        folder / name,
        sampling=sampling,
        batch={"journal_dir": str(folder / "journals" / name)},
    )
    command = [sys.executable, "-m", "deployments.cli.main", "run", str(job)]
    subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True, timeout=240)
    return folder / name


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, rawseq_env: dict[str, str]) -> Iterator[Made]:
    """The dataset, with its server still there."""
    folder = tmp_path_factory.mktemp("made")
    standin = start_standin(["--enable-deterministic-inference"], folder / "standin.log")
    try:
        yield Made(standin.url, run_job(folder, rawseq_env, standin.url, "out", logprobs_share=0.5))
    finally:
        standin.end()


Rescore = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def rescore(made: Made, capsys: pytest.CaptureFixture[str]) -> Rescore:
    """Run `rawseq verify STORE --rescore URL --json` here; returns exit status and the object."""

    def run(store: Path, *arguments: object, url: str = made.url) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        words = ["verify", str(store), "--rescore", url, "--json", *map(str, arguments)]
        status = cli.main(words, standalone_mode=False)
        return status, json.loads(capsys.readouterr().out)

    return run


def kept_rows(store: ObjectStore) -> dict[str, list[float]]:
    """Return the kept log probabilities of every accepted row that has some."""
    rows = [row for info in store.list("provenance/") for row in decode_provenance(store.get(info.key))]
    kept = [row for row in rows if row["accepted"] and "logprobs" in row["facts"]]
    return {row["row_id"]: row["facts"]["logprobs"] for row in kept}


def failed(answer: dict[str, Any]) -> list[str]:
    """Return the names of the checks that failed."""
    return [check["name"] for check in answer["checks"] if not check["passed"]]


def test_a_clean_dataset_passes(made: Made, rescore: Rescore) -> None:
    """Every row is likely enough, and those with kept log probabilities have them again, within a hair."""
    status, answer = rescore(made.store, "--tolerance", 0.001)
    assert (status, failed(answer)) == (0, [])
    kept, rows, check = len(kept_rows(opened(made.store))), answer["rows"]["accepted"], answer["checks"][-1]
    assert 4 <= kept <= rows - 4
    assert (check["name"], check["checked"]) == ("rescored", 2 * rows + kept)
    assert answer["notices"] == [f"rescored: {rows} rows on {made.url}, {kept} of them held to kept logprobs"]
    assert answer["reason"] == (
        f"trainable: {rows} rows of all batches pass 11 checks; {rows} of {rows} rows scored, {kept} of them "
        f"held to kept log probabilities, so not seen: at temperature 0.7, in the {rows - kept} without "
        "kept log probabilities, an id exchanged for a likely one, a model much like the one that is asked"
    )
    assert answer["scored"] == {
        "rows": rows,
        "of": rows,
        "held": kept,
        "sentence": answer["reason"].partition("; ")[2],
    }


def content(row: dict[str, Any]) -> range:
    """Return the places of the longest segment that the model wrote."""
    segments = [part for part in row["segments"] if part["kind"] in ("reasoning", "content")]
    longest = max(segments, key=lambda part: part["stop"] - part["start"])
    return range(longest["start"], longest["stop"])


def words(row: dict[str, Any]) -> list[int]:
    """Return the places of whole words in it: ids beyond the bytes, each once."""
    first = {
        row["input_ids"][place]: place for place in reversed(content(row)) if row["input_ids"][place] > 300
    }
    return sorted(first.values())


def swap_words(row: dict[str, Any]) -> None:
    """Exchange two words of what the model wrote."""
    ids, places = row["input_ids"], words(row)
    one, two = places[1], places[-2]
    ids[one], ids[two] = ids[two], ids[one]


def other_id(row: dict[str, Any]) -> None:
    """Put another word where one was drawn."""
    place = words(row)[2]
    row["input_ids"][place] = 1200 if row["input_ids"][place] != 1200 else 1201


def move(row: dict[str, Any], place: int, by: int) -> None:
    """Move the lines between segments behind a place."""
    for part in row["segments"]:
        part["start"] += by if part["start"] > place else 0
        part["stop"] += by if part["stop"] > place else 0


def tokenize_again(row: dict[str, Any]) -> None:
    """Spell one word with smaller pieces: the same text, other ids."""
    vocabulary = load_vocabulary(ModelSpec(tokenizer=str(STANDIN_MODEL)))
    for place in words(row):
        text = vocabulary.decode([row["input_ids"][place]])
        pieces = [vocabulary.tokenizer.encode(sign, add_special_tokens=False) for sign in text]
        ids = [token for piece in pieces for token in piece]
        if vocabulary.decode(ids) == text and len(ids) > 2:
            row["input_ids"][place : place + 1] = ids
            move(row, place, len(ids) - 1)
            return
    raise AssertionError("no word can be spelled otherwise")


def is_sum(row: dict[str, Any]) -> bool:
    """Whether a row's prompt asks for a sum, not for a thing."""
    return int(row["row_id"].split(":p")[1].split("#")[0]) % 2 == 0


def answer_of_another(store: ObjectStore) -> Callable[[dict[str, Any]], None]:
    """Return the change that joins the answer of a row of batch 0 to another prompt."""
    tampering = Tampering(store)
    table = pq.read_table(pa.BufferReader(store.get(tampering.file("shard", "receipts/000000.g0.json"))))

    def change(row: dict[str, Any]) -> None:
        others = [other for other in table.to_pylist() if is_sum(other) != is_sum(row)]
        theirs = max(others, key=lambda other: len(other["input_ids"]))
        mine, start = row["prompt_length"], theirs["prompt_length"]
        row["input_ids"] = row["input_ids"][:mine] + theirs["input_ids"][start:]
        row["segments"] = [
            {**part, "start": part["start"] - start + mine, "stop": part["stop"] - start + mine}
            for part in theirs["segments"]
        ]
        row["segments"][0]["start"] = 0

    return change


CORRUPTIONS: dict[str, Callable[[ObjectStore], Callable[[dict[str, Any]], None]]] = {
    "two words exchanged": lambda _: swap_words,
    "another id than was drawn": lambda _: other_id,
    "a word tokenized again": lambda _: tokenize_again,
    "another prompt's answer": answer_of_another,
}


@pytest.mark.parametrize("kept", [True, False], ids=["with kept logprobs", "without"])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_planted_corruption_is_flagged(
    made: Made, rescore: Rescore, tmp_path: Path, name: str, kept: bool
) -> None:
    """Digests, counts, grammar and provenance fit: only re-scoring fails, and it names that row alone."""
    shutil.copytree(made.store, tmp_path / "copy")
    store = opened(tmp_path / "copy")
    tampering = Tampering(store)
    shard = pq.read_table(pa.BufferReader(store.get(tampering.file()))).to_pylist()
    known = kept_rows(store)
    rows = [row for row in shard if (row["row_id"] in known) == kept and len(words(row)) >= 6]
    row_id = rows[0]["row_id"]
    plant(tampering, row_id, CORRUPTIONS[name](store))
    status, answer = rescore(tmp_path / "copy")
    assert (status, failed(answer)) == (1, ["rescored"])
    problems = answer["checks"][-1]["problems"]
    assert {(problem["object"], problem["row"]) for problem in problems} == {
        (tampering.file(), shard.index(rows[0]))
    }
    assert any("log probabilities of its generation" in problem["expected"] for problem in problems) == kept
    assert any("log probabilities" not in problem["expected"] for problem in problems)
    assert answer["reason"].startswith("not trainable: rescored (")
    assert row_id in answer["reason"]


def test_a_sample_holds_rows_of_both_kinds(made: Made, rescore: Rescore) -> None:
    """Six rows, at least half of them with kept log probabilities; the same seed takes the same ones."""
    answers = [rescore(made.store, "--sample", 6, "--seed", seed)[1] for seed in (3, 3)]
    assert answers[0] == answers[1]
    assert answers[0]["notices"][0].startswith(f"rescored: 6 rows on {made.url}, ")
    assert 2 * 6 + 3 <= answers[0]["checks"][-1]["checked"] <= 3 * 6
    scored, of = answers[0]["scored"], answers[0]["rows"]["accepted"]
    assert (scored["rows"], scored["of"]) == (6, of)
    assert answers[0]["reason"].endswith(f"; anything in the ids of the {of - 6} that were not scored")


def likely(url: str, row: dict[str, Any]) -> tuple[int, int]:
    """Return a place of a row's output and another id that the model is about as likely to draw there."""
    body = {
        "input_ids": row["input_ids"],
        "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
        "return_logprob": True,
        "logprob_start_len": row["prompt_length"] - 1,
        "top_logprobs_num": 2,
    }
    request = urllib.request.Request(f"{url}/generate", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=60) as reply:
        meta = json.loads(reply.read())["meta_info"]
    best = meta["input_top_logprobs"][-(len(row["input_ids"]) - row["prompt_length"]) :]
    closest = []
    for place in content(row):
        (one, first, _), (two, second, _) = best[place - row["prompt_length"]]
        if row["input_ids"][place] == first and 300 < second < 2030:
            closest.append((one - two, place, second))
    _, place, other = min(closest)
    return place, other


def test_what_cannot_be_seen_is_not_called_good(made: Made, rescore: Rescore, tmp_path: Path) -> None:
    """A likely id put into a row without kept log probabilities passes all checks: the line says it may."""
    shutil.copytree(made.store, tmp_path / "copy")
    store = opened(tmp_path / "copy")
    tampering, known = Tampering(store), kept_rows(opened(made.store))
    shard = pq.read_table(pa.BufferReader(store.get(tampering.file()))).to_pylist()
    row = next(row for row in shard if row["row_id"] not in known and len(words(row)) >= 6)
    place, other = likely(made.url, row)
    plant(tampering, row["row_id"], lambda row: row["input_ids"].__setitem__(place, other))
    status, answer = rescore(tmp_path / "copy")
    assert (status, answer["trainable"]) == (0, True), answer["reason"]
    loose = answer["rows"]["accepted"] - len(known)
    unseen = (
        f"so not seen: at temperature 0.7, in the {loose} without kept log probabilities, an id exchanged"
    )
    assert unseen in answer["reason"]


def test_asking_for_logprobs_changes_no_id(made: Made, tmp_path: Path, rawseq_env: dict[str, str]) -> None:
    """With none kept the job is the same and its shards are byte-identical; nothing is kept."""
    none = run_job(tmp_path, rawseq_env, made.url, "none")
    shards = [sorted(path.name for path in folder.rglob("shards/*")) for folder in (made.store, none)]
    assert shards[0] == shards[1]
    assert opened(none).uri.rsplit("/", 1)[1] == opened(made.store).uri.rsplit("/", 1)[1]
    assert kept_rows(opened(none)) == {}


def test_what_cannot_be_asked_is_an_error(
    made: Made, rescore: Rescore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address with credentials, and one where nothing is: each its own error, and no secret in it."""
    with pytest.raises(JobError, match="--rescore: expected http://host:port without credentials") as told:
        rescore(made.store, url="http://me:secret@127.0.0.1:1")
    assert "secret" not in str(told.value)
    monkeypatch.setattr("deployments.cli.verbs.verify.READY_SECONDS", 0.5)
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(SurroundingsError, match=f"{url}: expected a ready SGLang server"):
        rescore(made.store, url=url)


RUN = """
import asyncio, json, sys
from flows.audit import audit_dataset
from tasks.job.spec import ServersSpec, StoreSpec
servers = ServersSpec(urls=[sys.argv[2]], ready_timeout_seconds=30)
state = asyncio.run(audit_dataset(StoreSpec(uri=sys.argv[1]), servers, return_state=True))
print(json.dumps({"name": state.name, "message": state.message}))
"""


def run_flow(template: Template, folder: Path, store: Path, url: str) -> dict[str, str]:
    """Run the flow in a process of its own; return name and message of its end state."""
    printed = template.run_code(RUN, str(store), url, folder=folder)
    return dict(json.loads(printed.splitlines()[-1]))


def table_of(api: str, key: str) -> list[dict[str, str]]:
    """Return the newest table artifact of a key."""
    wanted = {"artifacts": {"key": {"any_": [key]}}, "sort": "CREATED_DESC", "limit": 1}
    request = urllib.request.Request(f"{api}/artifacts/filter", json.dumps(wanted).encode(), method="POST")
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=30) as reply:
        (artifact,) = json.loads(reply.read())
    table: list[dict[str, str]] = json.loads(artifact["data"])
    return table


def test_the_flow_says_the_same(made: Made, tmp_path: Path, template: Template, prefect_api: str) -> None:
    """Clean: Completed. With a planted id: Failed for the verb's reason; the findings are an artifact."""
    ended = run_flow(template, tmp_path, made.store, made.url)
    assert ended["name"] == "Completed"
    assert ended["message"].startswith("trainable: ")
    assert "rows scored, " in ended["message"]
    assert "so not seen: " in ended["message"]
    shutil.copytree(made.store, tmp_path / "copy")
    store = opened(tmp_path / "copy")
    tampering = Tampering(store)
    shard = pq.read_table(pa.BufferReader(store.get(tampering.file()))).to_pylist()
    row_id = next(row["row_id"] for row in shard if len(words(row)) >= 6)
    plant(tampering, row_id, other_id)
    ended = run_flow(template, tmp_path, tmp_path / "copy", made.url)
    assert ended["name"] == "Failed"
    assert ended["message"].startswith("not trainable: rescored (")
    assert row_id in ended["message"]
    table = table_of(prefect_api, f"audit-{store.uri.rsplit('/', 1)[1]}")
    assert table[-1] == {"check": "trainable", "passed": "no", "finding": ended["message"]}
    assert any(line["check"] == "rescored" and row_id in line["finding"] for line in table)
