"""Rows whose end id is their last allowed id: `length` for SGLang up to 0.5.16, `stop` from 0.5.18 on."""

import json
from pathlib import Path

from deployments.standin.launch import Standin
from tasks.dataset.shard_reader import decode_shard
from tests.flows.test_retry import accepted
from tests.support.embedded import switch
from tests.support.jobs import Rawseq, opened, write_job, write_prompts


def rows_of(store: Path) -> dict[str, tuple[str, str, list[int]]]:
    """Return finish reason, verdict and output ids of the accepted rows of first generations."""
    job, found = opened(store), {}
    for path in sorted(store.rglob("receipts/*.g0.json")):
        rows = decode_shard(job.get(json.loads(path.read_bytes())["shard"]["key"]))
        for i, name in enumerate(rows.row_ids):
            found[name] = rows.finish_reasons[i], rows.verdicts[i], rows.outputs(i).tolist()
    return found


async def test_an_end_at_the_cap_is_complete_and_never_lengthened(
    tmp_path: Path, rawseq: Rawseq, standin: Standin
) -> None:
    """The same ids and verdict, whichever reason the version gives; `continue` leaves such a row alone."""
    prompts = write_prompts(tmp_path / "p.jsonl", 8)

    def run(name: str, cap: int) -> dict[str, tuple[str, str, list[int]]]:
        sampling, policy = {"max_new_tokens": cap}, {"accepted_floor": 0.0}
        job = write_job(
            tmp_path / f"{name}.yaml", standin.url, prompts, tmp_path / name, sampling=sampling, policy=policy
        )
        ran = rawseq("run", str(job))
        assert ran.status == 0, ran.stderr
        return rows_of(tmp_path / name)

    free = run("free", 256)
    ended = {name: ids for name, (_, verdict, ids) in free.items() if verdict == "complete"}
    cap = sorted(map(len, ended.values()))[len(ended) // 2]
    at_cap = {name: ids for name, ids in ended.items() if len(ids) == cap}
    await switch(standin.url, length_first=True)
    capped = run("capped", cap)
    assert {name: capped[name] for name in at_cap} == {
        name: ("length", "complete", ids) for name, ids in at_cap.items()
    }
    assert {finish for finish, _, ids in capped.values() if len(ids) < cap} == {"stop"}
    before = accepted(tmp_path / "capped")
    more = rawseq("continue", str(tmp_path / "capped"), "--max-new-tokens", "64")
    assert more.status == 0, more.stderr
    after = accepted(tmp_path / "capped")
    grown = {name for name, ids in before.items() if len(after[name]) > len(ids)}
    assert (
        grown == {name for name, (_, verdict, _) in capped.items() if verdict.startswith("cut_in")} != set()
    )
