"""A disk that is full, over its quota or read-only, and journals that may not grow: stop, or wait."""

import re
from pathlib import Path

import pytest

from deployments.standin.launch import Standin
from tests.flows.counted import prompts_started, rows_in
from tests.support.forked import Fault
from tests.support.jobs import Rawseq, opened, write_job, write_prompts


@pytest.mark.parametrize(
    ("fault", "advice"),
    [
        pytest.param(Fault("ENOSPC", "/journals/", 4), "free space on that disk", id="journal-disk-full"),
        pytest.param(Fault("EDQUOT", "/journals/", 4), "raise the quota", id="journal-quota"),
        pytest.param(Fault("EROFS", "/journals/"), "mount it writable", id="journal-read-only"),
        pytest.param(Fault("ENOSPC", "/shards/"), "free space on that disk", id="store-disk-full"),
        pytest.param(Fault("EDQUOT", "/receipts/", 2), "raise the quota", id="store-quota"),
    ],
)
def test_the_disk_refuses(
    tmp_path: Path, rawseq: Rawseq, standin: Standin, fault: Fault, advice: str
) -> None:
    """The run ends with the place and what to do, exit 5; then, the disk mended, the same command resumes."""
    job = write_job(
        tmp_path / "job.yaml",
        standin.url,
        write_prompts(tmp_path / "p.jsonl", 12, first=100),
        tmp_path / "out",
        batch={"rows": 4, "in_flight": 4},
    )
    stopped = rawseq("run", str(job), fault=fault)
    assert stopped.status == 5, stopped.stderr[-3000:]
    assert advice in stopped.answer["error"]["message"]
    again = rawseq("run", str(job))
    assert again.status == 0, again.stderr[-3000:]
    names = rows_in(opened(tmp_path / "out"))
    assert len(names) == 16
    begun = prompts_started(standin.url)
    wasted = sum(begun[key] for key in names.values()) - len(names)
    assert wasted <= (
        16 if "/journals/" in fault.path else 4
    )  # what was not written; else what was in flight
    assert rawseq("verify", str(tmp_path / "out")).answer["trainable"] is True


def test_journals_that_may_not_grow(tmp_path: Path, rawseq: Rawseq, standin: Standin) -> None:
    """Above `batch.journal_gigabytes` no batch is opened until one is committed; the job ends complete."""
    job = write_job(
        tmp_path / "job.yaml",
        standin.url,
        write_prompts(tmp_path / "p.jsonl", 12, first=100),
        tmp_path / "out",
        batch={"rows": 4, "in_flight": 64, "journal_gigabytes": 1e-9},
    )
    ran = rawseq("run", str(job))
    assert ran.status == 0, ran.stderr[-3000:]
    assert ran.stderr.count("more than batch.journal_gigabytes = 1e-09: no further batch is opened") == 2
    order = re.findall("(render_prompts|commit_batch) .* Finished", ran.stderr)
    assert order == ["render_prompts", "commit_batch"] * 3
