"""Work again: rejected rows as a new receipt generation, accepted ones verbatim."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from deployments.standin.launch import Standin, start_standin
from tasks.dataset.shard_reader import decode_provenance, decode_shard
from tests.flows.counted import started_generations
from tests.support.forked import Fault, Template
from tests.support.jobs import Rawseq, opened, write_job, write_prompts


def accepted(store: Path) -> dict[str, list[int]]:
    """Return the accepted rows of the receipts that count."""
    job, found = opened(store), {}
    counting = {path.name.split(".")[0]: path for path in sorted(store.rglob("receipts/*.json"))}
    for path in counting.values():
        shard = json.loads(path.read_bytes())["shard"]
        if shard is not None:
            rows = decode_shard(job.get(shard["key"]))
            found |= {name: rows.sequences.row(i).tolist() for i, name in enumerate(rows.row_ids)}
    return found


def test_rejected_rows_are_made_again(tmp_path: Path, rawseq: Rawseq, standin: Standin) -> None:
    """Cut rows that policy rejects are drawn anew in generation 1; every accepted row stays as it was."""
    job = write_job(
        tmp_path / "job.yaml",
        standin.url,
        write_prompts(tmp_path / "p.jsonl", 24),
        tmp_path / "out",
        sampling={"max_new_tokens": 40, "temperature": 1.0},
        policy={"on_length": "reject", "accepted_floor": 0.0},
    )
    codes = ("cut_in_reasoning", "cut_in_content")
    first = rawseq("run", str(job)).answer["rows"]["by_verdict"]
    cut = sum(first.get(code, 0) for code in codes)
    assert cut > 0, first
    before = accepted(tmp_path / "out")
    again = rawseq("retry", str(tmp_path / "out"), *(f"--rejected={code}" for code in codes))
    assert again.status == 0, again.stderr
    assert cut <= again.answer["generated_rows"] <= cut + first.get("unreached", 0)
    after = accepted(tmp_path / "out")
    assert {name: after[name] for name in before} == before
    assert len(after) > len(before)
    assert again.answer["rows"]["total"] == sum(first.values())
    assert list((tmp_path / "out").rglob("receipts/*.g1.json"))
    nothing = rawseq("retry", str(tmp_path / "out"), "--rejected", "nan")
    assert (nothing.status, nothing.answer["generated_rows"]) == (0, 0)
    assert rawseq("verify", str(tmp_path / "out")).answer["trainable"] is True


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param(["--batches", "7"], "within 0-0", id="batch-not-planned"),
        pytest.param(["--batches", "x"], "3,7-9", id="batches-malformed"),
        pytest.param(["--rejected", "nonsense"], "nonsense", id="code-unknown"),
        pytest.param(["--rejected", "complete"], "accepted by this job's policy", id="code-accepted"),
    ],
)
def test_what_cannot_be_made_again_is_named(
    tmp_path: Path, rawseq: Rawseq, arguments: list[str], expected: str
) -> None:
    """Wrong batches and codes end with exit 2 before any server is asked."""
    server = start_standin([], tmp_path / "log")
    try:
        job = write_job(
            tmp_path / "job.yaml", server.url, write_prompts(tmp_path / "p.jsonl", 2), tmp_path / "out"
        )
        assert rawseq("run", str(job)).status == 0
    finally:
        server.end()
    ran = rawseq("retry", str(tmp_path / "out"), *arguments)
    assert ran.status == 2, ran.stderr
    assert expected in ran.answer["error"]["message"]


def test_cut_rows_go_on_where_they_stopped(tmp_path: Path, rawseq: Rawseq, standin: Standin) -> None:
    """`continue` keeps every id of a cut row, adds to it, and makes the turns that were unreached."""
    job = write_job(
        tmp_path / "job.yaml",
        standin.url,
        write_prompts(tmp_path / "p.jsonl", 12),
        tmp_path / "out",
        sampling={"max_new_tokens": 20},
    )
    run = rawseq("run", str(job))
    first = run.answer["rows"]["by_verdict"]
    cut = first.get("cut_in_reasoning", 0) + first.get("cut_in_content", 0)
    assert cut > 0, first
    before = accepted(tmp_path / "out")
    ran = rawseq("continue", str(tmp_path / "out"), "--max-new-tokens", "300")
    assert ran.status == 0, ran.stderr
    assert set(ran.answer["rows"]["by_verdict"]) == {"complete"}
    assert ran.answer["generated_rows"] == cut + first.get("unreached", 0)
    made = ran.answer["tokens"]["output"] - run.answer["tokens"]["output"]
    assert ran.answer["generated_tokens"] == made, "only what was added counts, not what was there"
    after = accepted(tmp_path / "out")
    assert all(after[name][: len(ids)] == ids for name, ids in before.items())
    assert sum(len(after[name]) > len(ids) for name, ids in before.items()) == cut
    assert rawseq("verify", str(tmp_path / "out")).answer["trainable"] is True
    assert rawseq("continue", str(tmp_path / "out"), "--max-new-tokens", "300").answer["generated_rows"] == 0


def test_orphans_are_collected_when_old_enough(tmp_path: Path, rawseq: Rawseq, standin: Standin) -> None:
    """A file that no receipt lists is shown, kept while young, and deleted when told."""
    job = write_job(
        tmp_path / "job.yaml", standin.url, write_prompts(tmp_path / "p.jsonl", 3), tmp_path / "out"
    )
    assert rawseq("run", str(job)).status == 0
    shard = next((tmp_path / "out").rglob("shards/*.parquet"))
    orphan = shard.with_name("0" * 64 + ".parquet")
    orphan.write_bytes(b"left by a lost race")
    kept = rawseq("verify", str(tmp_path / "out"), "--collect-orphans").answer
    assert (kept["orphans"], kept["collected"]["deleted"]) == ([f"shards/{orphan.name}"], [])
    gone = rawseq("verify", str(tmp_path / "out"), "--collect-orphans", "--older-than-seconds", "0").answer
    assert gone["collected"]["deleted"] == [f"shards/{orphan.name}"]
    assert not orphan.exists()
    assert shard.exists()


def test_a_copied_dataset_is_what_changes(tmp_path: Path, rawseq: Rawseq, standin: Standin) -> None:
    """`continue` on a copy writes into the copy; the original, which job.json names, stays as it was."""
    job = write_job(
        tmp_path / "job.yaml",
        standin.url,
        write_prompts(tmp_path / "p.jsonl", 8),
        tmp_path / "out",
        sampling={"max_new_tokens": 20},
    )
    assert rawseq("run", str(job)).status == 0
    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    before = sorted(path.name for path in (tmp_path / "out").rglob("receipts/*"))
    ran = rawseq("continue", str(tmp_path / "copy"), "--max-new-tokens", "300")
    assert ran.status == 0, ran.stderr
    assert ran.answer["store"].startswith(str(tmp_path / "copy"))
    assert sorted(path.name for path in (tmp_path / "out").rglob("receipts/*")) == before
    assert list((tmp_path / "copy").rglob("receipts/*.g1.json"))


def cut_codes(first: dict[str, int]) -> list[str]:
    """Return the arguments that ask for every cut row again."""
    return [f"--rejected={code}" for code in first if code.startswith("cut_in")]


def rejecting_job(tmp_path: Path, standin: Standin, records: int, rows: int) -> Path:
    """Write a job some of whose rows are cut and so rejected."""
    return write_job(
        tmp_path / "job.yaml",
        standin.url,
        write_prompts(tmp_path / "p.jsonl", records),
        tmp_path / "out",
        sampling={"max_new_tokens": 40, "temperature": 1.0},
        policy={"on_length": "reject", "accepted_floor": 0.0},
        batch={"rows": rows},
    )


def rejected_in(receipt: dict[str, Any]) -> int:
    """Return how many rows of a receipt's batch are not complete."""
    return sum(count for code, count in receipt["rows"]["by_verdict"].items() if code != "complete")


def test_two_retries_do_not_make_the_same_rows(
    tmp_path: Path, rawseq: Rawseq, template: Template, standin: Standin
) -> None:
    """Of two equal retries at once, from two machines, each generation of a batch is made by one.

    The second may begin when the first has committed a batch: what is still cut in it is then made once more.
    """
    job = rejecting_job(tmp_path, standin, 24, 8)
    first = rawseq("run", str(job)).answer["rows"]["by_verdict"]
    begun = started_generations(standin.url)
    logs = [tmp_path / f"log{number}" for number in range(2)]
    runs = [
        template.start(
            log,
            "retry",
            str(tmp_path / "out"),
            *cut_codes(first),
            f"--set=batch.journal_dir={tmp_path / f'machine-{log.name}'}",
        )
        for log in logs
    ]
    statuses = [template.wait(run, 200.0) for run in runs]
    assert statuses == [0, 0], [log.read_text()[-2000:] for log in logs]
    receipts = {
        path.name: json.loads(path.read_bytes()) for path in (tmp_path / "out").rglob("receipts/*.json")
    }
    before = {2: ".g1.", 1: ".g0."}
    again = sum(
        rejected_in(receipts[name.replace(f".g{later}.", earlier)])
        for later, earlier in before.items()
        for name in receipts
        if f".g{later}." in name
    )
    assert (
        started_generations(standin.url) - begun <= again + 2 * 9
    )  # and the probes of both, fingerprints among them
    assert 1 <= sum(".g1." in name for name in receipts) <= 3
    assert not any(".g3." in name for name in receipts)
    assert not list((tmp_path / "out").rglob("leases/*/*"))
    assert rawseq("verify", str(tmp_path / "out")).answer["trainable"] is True


@pytest.mark.parametrize("write", [1, 2, 3])
def test_a_retry_killed_while_it_copies(tmp_path: Path, rawseq: Rawseq, standin: Standin, write: int) -> None:
    """SIGKILL in the middle of a write to the new journal, then again: as if it had not been killed."""
    job = rejecting_job(tmp_path, standin, 24, 24)
    first = rawseq("run", str(job)).answer["rows"]["by_verdict"]
    before = accepted(tmp_path / "out")
    killed = rawseq("retry", str(tmp_path / "out"), *cut_codes(first), fault=Fault("kill", ".g1/", write))
    assert killed.status == -signal.SIGKILL, killed.stderr[-3000:]
    assert list((tmp_path / "journals").rglob("000000.g1/*.journal"))
    again = rawseq("retry", str(tmp_path / "out"), *cut_codes(first))
    assert again.status == 0, again.stderr
    after = accepted(tmp_path / "out")
    assert {name: after[name] for name in before} == before
    assert again.answer["rows"]["total"] == sum(first.values())
    assert not list((tmp_path / "journals").rglob("*.g1"))
    assert rawseq("verify", str(tmp_path / "out")).answer["trainable"] is True


def test_damaged_batches_are_repaired(tmp_path: Path, rawseq: Rawseq, standin: Standin) -> None:
    """A deleted shard, a flipped byte, lost provenance: only lost rows are made, and the reason is kept."""
    out = tmp_path / "out"
    job = rejecting_job(tmp_path, standin, 24, 6)
    first = rawseq("run", str(job)).answer["rows"]
    files = [json.loads(path.read_bytes()) for path in sorted(out.rglob("receipts/*.json"))]
    root = next(out.iterdir())
    shards = [root / receipt["shard"]["key"] for receipt in files]
    before = [path.read_bytes() for path in shards]
    shards[0].unlink()
    shards[1].write_bytes(before[1][:-1] + bytes([before[1][-1] ^ 1]))
    (root / files[2]["provenance"]["key"]).unlink()
    (root / files[3]["frequencies"]["key"]).write_bytes(b"x" * files[3]["frequencies"]["bytes"])

    status = rawseq("status", str(out))
    assert (status.status, status.answer["state"]) == (3, "incomplete")
    assert status.answer["damaged"] == {
        "batches": [0, 2],
        "repair": f"rawseq retry {root} --batches 0,2",
    }
    assert rawseq("verify", str(out)).answer["repair"] == f"rawseq retry {root} --batches 0-3"
    ran = rawseq("retry", str(out), "--batches", "0-3")
    assert ran.status == 0, ran.stderr
    lost = sum(receipt["rows"]["accepted"] for receipt in files[:2])
    following = sum(receipt["rows"]["rejected"] for receipt in files[:2])  # second turns of lost first ones
    assert lost <= ran.answer["generated_rows"] <= lost + following
    assert ran.answer["rows"] == first
    assert [path.read_bytes() for path in shards] == before  # the same noise gave the same rows
    reasons = [json.loads(path.read_bytes())["reason"] for path in sorted(out.rglob("receipts/*.g1.json"))]
    assert reasons == ["shard missing", "shard changed", "provenance missing", "frequencies changed"]
    assert rawseq("verify", str(out)).answer["trainable"] is True
    assert rawseq("status", str(out)).status == 0


def test_rows_are_found_in_earlier_generations(tmp_path: Path, rawseq: Rawseq, standin: Standin) -> None:
    """When a retry's shard is lost, what it had copied is copied again; what it had made is made again."""
    out = tmp_path / "out"
    job = rejecting_job(tmp_path, standin, 24, 24)
    first = rawseq("run", str(job)).answer["rows"]
    retried = rawseq("retry", str(out), *cut_codes(first["by_verdict"]))
    assert retried.status == 0, retried.stderr
    before = accepted(out)
    (receipt,) = out.rglob("receipts/*.g1.json")
    (next(out.iterdir()) / json.loads(receipt.read_bytes())["shard"]["key"]).unlink()
    ran = rawseq("retry", str(out), "--batches", "0")
    assert ran.status == 0, ran.stderr
    made = retried.answer["rows"]["accepted"] - first["accepted"]
    assert made <= ran.answer["generated_rows"] <= made + retried.answer["rows"]["rejected"]
    assert accepted(out) == before
    assert rawseq("verify", str(out)).answer["trainable"] is True


def test_a_continue_that_was_killed_is_taken_up_not_repeated(
    tmp_path: Path, rawseq: Rawseq, standin: Standin
) -> None:
    """The same command again makes the batches that are left; run once more, it lengthens all."""
    job = write_job(
        tmp_path / "job.yaml",
        standin.url,
        write_prompts(tmp_path / "p.jsonl", 16),
        tmp_path / "out",
        sampling={"max_new_tokens": 4},
        policy={"accepted_floor": 0.0},
    )
    assert rawseq("run", str(job)).status == 0
    command = ("continue", str(tmp_path / "out"), "--max-new-tokens", "2")
    assert rawseq(*command).status == 0
    receipts = sorted((tmp_path / "out").rglob("receipts/*.g1.json"))
    assert len(receipts) == 2
    kept = receipts[0].read_bytes()
    receipts[1].unlink()  # as a kill before its commit leaves it
    assert rawseq(*command).status == 0
    made = sorted(path.name for path in (tmp_path / "out").rglob("receipts/*.json"))
    assert made == [receipts[0].name.replace("g1", "g0"), receipts[0].name,
                    receipts[1].name.replace("g1", "g0"), receipts[1].name]  # fmt: skip
    assert receipts[0].read_bytes() == kept
    assert rawseq(*command).status == 0
    assert len(list((tmp_path / "out").rglob("receipts/*.g2.json"))) == 2


def test_what_one_server_made_is_made_again(tmp_path: Path, rawseq: Rawseq, standin: Standin) -> None:
    """All its rows, accepted ones too, elsewhere; all others are copied; one that made none is told."""
    prompts, other = write_prompts(tmp_path / "p.jsonl", 16), start_standin([], tmp_path / "other.log")
    urls = {"urls": [standin.url, other.url]}
    try:
        job = write_job(tmp_path / "job.yaml", standin.url, prompts, tmp_path / "out", servers=urls)
        assert rawseq("run", str(job)).status == 0
    finally:
        other.end()
    before = _servers(tmp_path / "out")
    theirs = sum(url == other.url for url in before.values())
    assert 0 < theirs < len(before)
    command = ("retry", str(tmp_path / "out"), "--set", f"servers.urls=[{standin.url}]", "--server")
    again = rawseq(*command, f"{other.url}/")
    assert (again.status, set(_servers(tmp_path / "out").values())) == (0, {standin.url}), again.stderr
    assert theirs <= again.answer["generated_rows"] < len(before)
    wrong = rawseq(*command, "http://127.0.0.1:9")
    assert (wrong.status, f"that made rows here ({standin.url})" in wrong.stderr) == (2, True), wrong.stderr


def _servers(store: Path) -> dict[str, str]:
    """Return server by row of the receipts that count, rows that were never sent left out."""
    job, found = opened(store), {}
    counting = {path.name.split(".")[0]: path for path in sorted(store.rglob("receipts/*.json"))}
    for path in counting.values():
        key = json.loads(path.read_bytes())["provenance"]["key"]
        found |= {
            row["row_id"]: row["server"] for row in decode_provenance(job.get(key), key) if row["server"]
        }
    return found
