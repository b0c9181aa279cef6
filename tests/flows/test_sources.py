"""Weights, duplicates and exclusions through the whole flow."""

import json
from pathlib import Path

from deployments.standin.launch import Standin
from tasks.dataset.shard_reader import decode_rejected, decode_shard
from tests.support.jobs import Rawseq, opened, write_job


def write(path: Path, *prompts: str) -> Path:
    """Write one prompt a line."""
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    return path


def test_a_mixture_with_repeats(tmp_path: Path, rawseq: Rawseq, standin: Standin) -> None:
    """Every record has its row: mixed by weight, repeats and an evaluation set's prompts as duplicates."""
    sums = write(tmp_path / "sums.jsonl", *(f"What is {n}+1?" for n in range(18)))
    more = write(tmp_path / "more.jsonl", "What is 3+1?", *(f"What is {n}+2?" for n in range(5)))
    exam = write(tmp_path / "exam.jsonl", "what is  4+2?")
    sources = [{"uri": str(sums), "weight": 3, "name": "plus-one"}, {"uri": str(more), "weight": 1}]
    job = write_job(
        tmp_path / "job.yaml",
        standin.url,
        sums,
        tmp_path / "out",
        prompts={"sources": sources, "exclude": [str(exam)], "limit": 12},
        policy={"accepted_floor": 0.0},
    )
    pilot = rawseq("run", str(job))
    assert pilot.status == 0, pilot.stderr
    full = rawseq("run", str(job), "--set", "prompts.limit=null")
    assert full.status == 0, full.stderr
    rows = full.answer["rows"]
    assert rows["total"] == 24 == rows["accepted"] + rows["rejected"]
    assert rows["by_verdict"]["duplicate"] == 2
    assert full.answer["accepted_share"] == round(rows["accepted"] / 22, 6)
    store = opened(tmp_path / "out")
    details = {}
    for info in store.list("rejected/"):
        table = decode_rejected(store.get(info.key))
        details |= dict(zip(table.row_ids, table.details, strict=True))
    names = {name for info in store.list("shards/") for name in decode_shard(store.get(info.key)).row_ids}
    assert len(names | set(details)) == 24
    repeats = {name: text for name, text in details.items() if "expected a prompt" in text}
    assert repeats.pop("more:6#t0~s0").endswith(f"the user messages of {exam}:1")
    assert set(repeats) < {"plus-one:4#t0~s0", "more:1#t0~s0"}  # whichever was planned later
    audited = rawseq("verify", str(tmp_path / "out"))
    assert audited.status == 0, audited.objects
