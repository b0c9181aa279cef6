"""The main flow over real sockets: prompts in, committed shards out, and every way in which it must stop."""

import json
from pathlib import Path

import orjson
import psutil

from deployments.standin.launch import Standin, start_standin
from tasks.dataset.shard_reader import decode_rejected, decode_shard
from tests.flows.counted import shard_names
from tests.support.jobs import Rawseq, opened, write_job, write_prompts


def test_a_job_is_made_and_then_not_again(tmp_path: Path, rawseq: Rawseq, standin: Standin) -> None:
    """Every row is accounted for, prompts end with the opener, and a second run generates nothing."""
    job = write_job(
        tmp_path / "job.yaml", standin.url, write_prompts(tmp_path / "p.jsonl", 20), tmp_path / "out"
    )
    ran = rawseq("run", str(job))
    assert ran.status == 0, ran.stderr
    answer = ran.answer
    assert answer["state"] == "complete"
    assert answer["batches"] == {"total": 3, "committed": 3, "skipped": 0, "failed": 0}
    assert answer["rows"]["total"] == 20 + 6  # every third record has two turns
    assert answer["rows"]["total"] == answer["rows"]["accepted"] + answer["rows"]["rejected"]
    again = rawseq("run", str(job))
    assert again.status == 0, again.stderr
    assert again.answer["generated_rows"] == 0
    assert again.answer["batches"]["skipped"] == 3
    assert again.answer["rows"] == answer["rows"]


def test_rows_are_prompt_and_output_verbatim(tmp_path: Path, rawseq: Rawseq, standin: Standin) -> None:
    """An accepted row is the rendered prompt (opener last) and the output (end id last), in source order."""
    job = write_job(
        tmp_path / "job.yaml", standin.url, write_prompts(tmp_path / "p.jsonl", 9), tmp_path / "out"
    )
    assert rawseq("run", str(job)).status == 0
    store = opened(tmp_path / "out")
    control = orjson.loads(store.get("job.json"))["resolved"]["control_ids"]
    names = []
    for info in store.list("shards/"):
        rows = decode_shard(store.get(info.key))
        for index, name in enumerate(rows.row_ids):
            names.append(name)
            assert rows.inputs(index)[-1] == control["<think>"]
            assert rows.outputs(index)[-1] == control["<|im_end|>"] == rows.matched_stops[index]
            assert (rows.outputs(index) == control["</think>"]).sum() == 1
            assert rows.segments[index][0].kind == "prompt"
            assert json.loads(rows.metadata[index])["topic"] == "sums"
        order = [
            (int(name.split(":p")[1].split("#")[0]), int(name.split("#t")[1][0])) for name in rows.row_ids
        ]
        assert order == sorted(order)
    assert len(set(names)) == len(names)


def test_processes_render_what_a_thread_renders(tmp_path: Path, rawseq: Rawseq, standin: Standin) -> None:
    """First prompts and next turns of a job with `batch.render_processes` are those of one without."""
    prompts = write_prompts(tmp_path / "p.jsonl", 12)
    stores = []
    for processes in (0, 1):
        stores.append(tmp_path / f"out{processes}")
        job = tmp_path / f"job{processes}" / "job.yaml"
        job.parent.mkdir()
        write_job(job, standin.url, prompts, stores[-1], batch={"render_processes": processes})
        ran = rawseq("run", str(job))
        assert (ran.status, ran.answer["rows"]["total"]) == (0, 12 + 4), ran.stderr
    assert shard_names(opened(stores[0])) == shard_names(opened(stores[1]))


def test_a_raised_limit_adds_batches(tmp_path: Path, rawseq: Rawseq, standin: Standin) -> None:
    """A pilot counts in the full job: raising `prompts.limit` adds batches behind and makes only those."""
    job = write_job(
        tmp_path / "job.yaml",
        standin.url,
        write_prompts(tmp_path / "p.jsonl", 24),
        tmp_path / "out",
        prompts={"limit": 8},
    )
    pilot = rawseq("run", str(job))
    assert pilot.answer["batches"]["total"] == 1
    full = rawseq("run", str(job), "--set", "prompts.limit=24")
    assert full.answer["batches"] == {"total": 3, "committed": 3, "skipped": 1, "failed": 0}
    assert full.answer["job_id"] == pilot.answer["job_id"]
    assert full.answer["generated_rows"] == full.answer["rows"]["total"] - pilot.answer["rows"]["total"]


def test_a_parser_is_switched_off(tmp_path: Path, rawseq: Rawseq) -> None:
    """With `restart: local` the process is started again with its own argv minus the flag, then probed."""
    with_parser = start_standin(
        ["--reasoning-parser", "kimi_k2", "--enable-deterministic-inference"], tmp_path / "standin.log"
    )
    port = with_parser.url.rsplit(":", 1)[1]
    try:
        before = psutil.Process(with_parser.pid).cmdline()
        job = write_job(
            tmp_path / "job.yaml",
            with_parser.url,
            write_prompts(tmp_path / "p.jsonl", 4),
            tmp_path / "out",
            servers={"restart": "local"},
        )
        ran = rawseq("run", str(job))
        assert ran.status == 0, ran.stderr
        after = [p for p in psutil.process_iter(["cmdline"]) if port in (p.info["cmdline"] or [])]
        assert [p.info["cmdline"] for p in after] == [
            [part for part in before if part not in ("--reasoning-parser", "kimi_k2")]
        ]
        assert "--reasoning-parser kimi_k2" in ran.stderr
    finally:
        with_parser.end()
        for process in psutil.process_iter(["cmdline"]):
            if port in (process.info["cmdline"] or []) and "deployments.standin" in process.info["cmdline"]:
                process.kill()
                process.wait(10)


def test_a_parser_stops_the_run_when_no_restart_is_allowed(tmp_path: Path, rawseq: Rawseq) -> None:
    """With `restart: none` the run ends with the evidence and the command line without the flag."""
    server = start_standin(["--reasoning-parser", "kimi_k2"], tmp_path / "standin.log")
    try:
        job = write_job(
            tmp_path / "job.yaml", server.url, write_prompts(tmp_path / "p.jsonl", 4), tmp_path / "out"
        )
        ran = rawseq("run", str(job))
    finally:
        server.end()
    assert ran.status == 1
    assert ran.answer["error"]["type"] == "UnfaithfulError"
    message = ran.answer["error"]["message"]
    assert "--reasoning-parser kimi_k2 is on" in message
    assert "reasoning_content" in message
    assert not list((tmp_path / "out").rglob("receipts/*"))


def test_a_server_that_strips_think_ids_gets_no_row(tmp_path: Path, rawseq: Rawseq) -> None:
    """The probe shows a server that loses the closer from `/generate`, and the run stops before any row."""
    server = start_standin(["--fault", "strip_think"], tmp_path / "standin.log")
    try:
        job = write_job(
            tmp_path / "job.yaml", server.url, write_prompts(tmp_path / "p.jsonl", 4), tmp_path / "out"
        )
        ran = rawseq("run", str(job))
    finally:
        server.end()
    assert ran.status == 1
    assert ran.answer["error"]["type"] == "UnfaithfulError"
    assert "closer_forced" in ran.answer["error"]["message"]
    assert not list((tmp_path / "out").rglob("receipts/*"))


def test_a_prompt_too_long_is_rejected_and_the_job_goes_on(
    tmp_path: Path, rawseq: Rawseq, standin: Standin
) -> None:
    """A prompt that no server would take becomes a rejected row with its code; the others are made."""
    prompts = write_prompts(tmp_path / "p.jsonl", 4)
    with prompts.open("a") as file:
        file.write(json.dumps({"id": "long", "prompt": "two and two " * 5000}) + "\n")
    job = write_job(tmp_path / "job.yaml", standin.url, prompts, tmp_path / "out")
    ran = rawseq("run", str(job))
    assert ran.status == 0, ran.stderr
    assert ran.answer["rows"]["by_verdict"]["prompt_too_long"] == 1
    store = opened(tmp_path / "out")
    (info,) = store.list("rejected/")
    rows = decode_rejected(store.get(info.key))
    index = rows.verdicts.index("prompt_too_long")
    assert rows.row_ids[index] == "p:long#t0~s0"
    assert "expected a prompt of at most" in rows.details[index]
