"""A dataset whose servers are exchanged between two runs, as its user meets it."""

import json
import re
from pathlib import Path

from deployments.standin.launch import Standin, running_standin_sync
from tests.support.jobs import Rawseq, write_job, write_prompts

NAMES = ("--enable-deterministic-inference", "--fault", "other_weights=0.2")


def test_a_later_run_with_another_model_is_refused_until_it_is_named(
    tmp_path: Path, rawseq: Rawseq, standin: Standin
) -> None:
    """The same names, other weights: exit 1 before a row is made; let in by name, dataset and card say so."""
    prompts = write_prompts(tmp_path / "p.jsonl", 8)
    first = rawseq("run", str(write_job(tmp_path / "job.yaml", standin.url, prompts, tmp_path / "out")))
    assert first.status == 0, first.stderr
    write_prompts(prompts, 16)
    with running_standin_sync(NAMES, tmp_path / "other.log") as other:
        job = write_job(tmp_path / "job.yaml", other, prompts, tmp_path / "out")
        refused = rawseq("run", str(job))
        assert refused.status == 1, refused.stderr
        found = re.search(r"it serves another model: .*allow_models: \[([0-9a-f]{8})\]", refused.stderr)
        assert found, refused.stderr
        assert len(list((tmp_path / "out").rglob("receipts/*.json"))) == 1
        rescore = ("verify", str(tmp_path / "out"), "--rescore")
        assert rawseq(*rescore, standin.url).answer["trainable"] is True
        asked = rawseq(*rescore, other)
        assert (asked.status, "expected a model that made these rows" in asked.stderr) == (1, True)
        job = write_job(
            tmp_path / "job.yaml", other, prompts, tmp_path / "out", servers={"allow_models": [found[1]]}
        )
        allowed = rawseq("run", str(job))
    assert allowed.status == 0, allowed.stderr
    (index,) = (tmp_path / "out").rglob("dataset.json")
    servers = json.loads(index.read_bytes())["provenance"]["servers"]
    assert {each["url"]: each["fingerprint"]["name"] for each in servers}[other] == found[1]
    assert len({each["fingerprint"]["name"] for each in servers}) == 2
    (card,) = (tmp_path / "out").rglob("README.md")
    assert found[1] in card.read_text()
