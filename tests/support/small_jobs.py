"""What the storage tests share: stores on a folder and on a real SeaweedFS, and small whole jobs."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deployments.local.seaweed import Seaweed, start_seaweed
from tasks.dataset.shard import encode_frequencies, encode_provenance, encode_rejected, encode_shard
from tasks.job.spec import JobSpec, StoreSpec
from tasks.ledger.ledger import Ledger, Receipt
from tasks.prompts.opening import open_sources
from tasks.prompts.plan_batches import extend_plan
from tasks.prompts.record import Record
from tasks.rows.records import CheckedBatch, Completion, Ragged, Segment, Verdict, as_ids
from tasks.rows.verdicts import Code
from tasks.store.contract import ObjectStore, canonical, sha256_hex
from tasks.store.opening import open_store
from tests.support.ceph import BUCKET as CEPH_BUCKET
from tests.support.ceph import KEYS as CEPH_KEYS
from tests.support.certificates import write_certificate

RESOLVED = {"tokenizer": {"size": 1000, "template_sha256": "template"}, "sampling": {"temperature": 0.7}}


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and its key, as PEM files."""
    return write_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]) -> Iterator[Seaweed]:
    """One SeaweedFS for the session, on free loopback ports, over http and https."""
    with start_seaweed(tmp_path_factory.mktemp("seaweed"), certificate=certificate) as server:
        yield server


@pytest.fixture
def s3_spec(seaweed: Seaweed, request: pytest.FixtureRequest) -> StoreSpec:
    """A store section whose prefix is this test's own."""
    prefix = "".join(sign if sign.isalnum() else "-" for sign in request.node.name)
    return StoreSpec(
        uri=f"s3://{seaweed.bucket}/{prefix}",
        endpoint_url=seaweed.http_url,
        region="us-east-1",
        deadline_seconds=20,
    )


CEPH = ["ceph", "ceph-https"] if "RAWSEQ_CEPH_URL" in os.environ else []
"""Lanes that `python -m tests.support.ceph` adds."""


@pytest.fixture(params=["folder", "s3", "s3-https", *CEPH])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    """An empty store of each kind."""
    if request.param == "folder":
        opened = open_store(StoreSpec(uri=str(tmp_path / "store")), "job")
    else:
        spec, keys, authority = s3_access(request, request.param)
        opened = open_store(spec, "job", keys, ca_bundle=authority)
    yield opened
    opened.close()


def s3_access(request: pytest.FixtureRequest, lane: str) -> tuple[StoreSpec, dict[str, str], str | None]:
    """Return store section, keys and certificate authority of an S3 lane."""
    prefix = "".join(sign if sign.isalnum() else "-" for sign in request.node.name)
    region = {"region": "us-east-1", "deadline_seconds": 20}
    if lane.startswith("ceph"):
        url = os.environ["RAWSEQ_CEPH_HTTPS_URL" if lane.endswith("https") else "RAWSEQ_CEPH_URL"]
        spec = StoreSpec(uri=f"s3://{CEPH_BUCKET}/{prefix}", endpoint_url=url, **region)
        return spec, CEPH_KEYS, os.environ["RAWSEQ_CEPH_CA"]
    server: Seaweed = request.getfixturevalue("seaweed")
    url = server.endpoint_url if lane.endswith("https") else server.http_url
    authority = str(request.getfixturevalue("certificate")[0])
    return (
        StoreSpec(uri=f"s3://{server.bucket}/{prefix}", endpoint_url=url, **region),
        server.credentials,
        authority,
    )


def job_spec(folder: Path, *sources: str, **sections: Any) -> JobSpec:
    """Return a small job over `sources`, stored below `folder`; sections are merged in."""
    data: dict[str, Any] = {
        "name": "trial",
        "model": {"tokenizer": "tiny"},
        "prompts": {"sources": list(sources)},
        "servers": {"urls": ["http://127.0.0.1:1"]},
        "batch": {"rows": 10},
        "store": {"uri": str(folder / "store")},
    }
    for name, section in sections.items():
        data[name] = {**data.get(name, {}), **section}
    return JobSpec(**data)


def completion_of(record: Record, number: int) -> Completion:
    """Return a made-up answer to a record: ids that depend on the record alone."""
    seed = int(record.digest[:6], 16)
    prompt = as_ids([seed % 900, *range(1, 4 + seed % 5)])
    output = as_ids([*(100 + (seed + step) % 800 for step in range(3 + seed % 7)), 999])
    facts = {
        "server": "http://127.0.0.1:1",
        "rid": f"rid-{number}",
        "completion_tokens": output.size,
        "prompt_tokens": prompt.size,
        "cached_tokens": None,
        "attempts": 1,
        "latency_seconds": 0.5,
        "finished_at": 1.0,
        "finish_reason": {"type": "stop", "matched": 999},
    }
    return Completion(f"{record.source}:{record.record_id}#t0~s0", prompt, output, "stop", 999, facts=facts)


def verdict_of(completion: Completion) -> Verdict:
    """Return a made-up verdict that depends on the ids alone: about one row in five is rejected."""
    prompt, total = completion.input_ids.size, completion.input_ids.size + completion.output_ids.size
    segments = (
        Segment("prompt", 0, prompt),
        Segment("content", prompt, total - 1),
        Segment("end", total - 1, total),
    )
    if int(completion.output_ids[0]) % 5 == 0:
        return Verdict(Code.REPETITION, prompt, segments, "expected new ids, got old ones")
    return Verdict(Code.COMPLETE, -1, segments)


def row_check(inputs: Ragged, outputs: Ragged, completions: Sequence[Completion]) -> list[Verdict]:
    """The made-up grammar as the audit is handed it."""
    del inputs, outputs
    return [verdict_of(completion) for completion in completions]


def checked_batch(index: int, completions: Sequence[Completion]) -> CheckedBatch:
    """Return a checked batch of those answers."""
    verdicts = tuple(verdict_of(completion) for completion in completions)
    rows = len(completions)
    return CheckedBatch(
        batch=index,
        row_ids=tuple(completion.row_id for completion in completions),
        inputs=Ragged.from_rows([completion.input_ids for completion in completions]),
        outputs=Ragged.from_rows([completion.output_ids for completion in completions]),
        verdicts=verdicts,
        accepted=np.array([verdict.code == Code.COMPLETE for verdict in verdicts], np.bool_),
        completions=tuple(completions),
        turns=np.zeros(rows, np.int16),
        samples=np.zeros(rows, np.int16),
        metadata=('{"category":"math"}',) * rows,
    )


def receipt_of(ledger: Ledger, batch: Any, checked: CheckedBatch) -> Receipt:
    """Put a checked batch's files and return its receipt, not yet committed."""
    accepted, rows = int(checked.accepted.sum()), len(checked)
    prompt = int(checked.inputs.lengths[checked.accepted].sum())
    output = int(checked.outputs.lengths[checked.accepted].sum())
    lost = int((checked.inputs.lengths + checked.outputs.lengths)[~checked.accepted].sum())
    put = ledger.put_file
    codes = [str(verdict.code) for verdict in checked.verdicts]
    return Receipt(
        job_id=ledger.job_id,
        batch=batch.index,
        generation=0,
        start=batch.start,
        stop=batch.stop,
        fingerprint=batch.fingerprint,
        shard=put("shards", encode_shard(checked), accepted, prompt + output) if accepted else None,
        rejected=put("rejected", encode_rejected(checked), rows - accepted, lost)
        if accepted < rows
        else None,
        provenance=put("provenance", encode_provenance(checked), rows, prompt + output + lost),
        frequencies=put("frequencies", encode_frequencies(checked), accepted, output) if accepted else None,
        rows={
            "total": rows,
            "accepted": accepted,
            "rejected": rows - accepted,
            "by_verdict": {code: codes.count(code) for code in sorted(set(codes))},
        },
        tokens={"prompt": prompt, "output": output},
        resolved_sha256=sha256_hex(canonical(RESOLVED)),
        template_sha256="template",
    )


def run_job(store: ObjectStore, spec: JobSpec, batches: int | None = None) -> Ledger:
    """Plan a job and commit its batches (or the first few pending ones) with made-up answers."""
    ledger = Ledger(store, spec.job_id)
    ledger.open_job(spec, RESOLVED)
    sources = open_sources(spec.prompts)
    plan = extend_plan(ledger, sources, spec, sha256_hex(canonical(RESOLVED)))
    for batch in ledger.pending(plan)[:batches]:
        answers = [completion_of(record, n) for n, record in enumerate(sources.read(batch))]
        ledger.commit(receipt_of(ledger, batch, checked_batch(batch.index, answers)))
    return ledger


@pytest.fixture
def prompts(tmp_path: Path) -> Callable[..., Path]:
    """Write a prompt file of `rows` numbered questions and return its path."""

    def write(name: str = "questions.jsonl", rows: int = 25, first: int = 0) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [
            canonical({"id": f"q{n}", "prompt": f"What is {n}+{n}?", "n": n})
            for n in range(first, first + rows)
        ]
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        return path

    return write


class Kit:
    """The builders above, as one fixture: test modules are not packages and import nothing from here."""

    resolved = RESOLVED
    job_spec = staticmethod(job_spec)
    completion_of = staticmethod(completion_of)
    checked_batch = staticmethod(checked_batch)
    receipt_of = staticmethod(receipt_of)
    run_job = staticmethod(run_job)
    row_check = staticmethod(row_check)


@pytest.fixture
def kit() -> Kit:
    """Builders of small jobs."""
    return Kit()
