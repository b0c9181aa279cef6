"""Verbs open a typed STORE with the keys of a Prefect block: no AWS variable is set anywhere here."""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments.local.seaweed import Seaweed, start_seaweed
from deployments.standin.launch import Standin
from tasks.job.spec import StoreSpec
from tasks.store.opening import find_job, open_store
from tests.conftest import RUN_SECONDS, free_port
from tests.support.jobs import Rawseq, write_job, write_prompts
from tests.support.prefect_api import make_block

KEYS = "store-access"


@pytest.fixture(scope="module")
def seaweed(tmp_path_factory: pytest.TempPathFactory, prefect_api: str) -> Iterator[Seaweed]:
    """A real S3 server with one bucket, which wants keys: they are in a block alone."""
    with start_seaweed(tmp_path_factory.mktemp("s3"), bucket="rawseq") as server:
        make_block(prefect_api, "secret", KEYS, {"value": json.dumps(server.credentials)})
        yield server


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Where this test's job goes."""
    return f"s3://rawseq/{tmp_path.name}"


@pytest.fixture
def job(tmp_path: Path, uri: str, rawseq: Rawseq, seaweed: Seaweed, standin: Standin) -> Path:
    """A finished job whose prompts and store are in a bucket, whose keys are in a block alone."""
    store = StoreSpec(uri="s3://rawseq", endpoint_url=seaweed.http_url, region="us-east-1")
    bucket = open_store(store, credentials=seaweed.credentials)
    bucket.put("p.jsonl", write_prompts(tmp_path / "p.jsonl", 4).read_bytes())
    bucket.close()
    path = write_job(
        tmp_path / "job.yaml",
        standin.url,
        Path("p.jsonl"),
        uri,
        prompts={"sources": ["s3://rawseq/p.jsonl"]},
        sampling={"max_new_tokens": 4},  # so that `continue` has something to do
        policy={"accepted_floor": 0.0},
        store={"endpoint_url": seaweed.http_url, "region": "us-east-1", "credentials_block": KEYS},
    )
    ran = rawseq("run", str(path))
    assert ran.status == 0, ran.stderr
    return path


def test_every_verb_opens_a_store_with_a_block(
    tmp_path: Path, uri: str, rawseq: Rawseq, seaweed: Seaweed, job: Path
) -> None:
    """Each ends as over a folder; nothing that a verb says or writes has a key in it."""
    store = (uri, "--endpoint-url", seaweed.http_url, "--credentials-block", KEYS)
    out = str(tmp_path / "export")
    for arguments in (
        ("render", str(job)),
        ("probe", *store),
        ("status", *store),
        ("show", *store),
        ("verify", *store),
        ("publish", *store),
        ("export", *store, "--to", "specforge-conversations", "--out", out),
        ("continue", *store, "--max-new-tokens", "8"),
    ):
        ran = rawseq(*arguments)
        said = json.dumps(ran.objects) + ran.stderr
        assert ran.status == 0, (arguments, said)
        assert seaweed.credentials["aws_secret_access_key"] not in said
    told = rawseq("verify", *store).answer
    assert told["notices"] == [], "the prompts in the bucket were read with the same keys"


def test_the_printed_repair_reaches_the_store(uri: str, rawseq: Rawseq, seaweed: Seaweed, job: Path) -> None:
    """A shard is lost: what `verify` and `status` print, typed as it stands, makes the store whole again."""
    store = (uri, "--endpoint-url", seaweed.http_url, "--credentials-block", KEYS)
    spec = StoreSpec(uri=uri, endpoint_url=seaweed.http_url, region="us-east-1")
    opened = find_job(spec, credentials=seaweed.credentials)
    opened.delete(next(opened.list("shards/")).key)
    opened.close()
    repair = rawseq("verify", *store).answer["repair"]
    assert repair == rawseq("status", *store).answer["damaged"]["repair"]
    assert shlex.split(repair)[3:7] == list(store[1:])
    again = rawseq(*shlex.split(repair)[1:])
    assert again.status == 0, again.stderr
    assert rawseq("verify", *store).status == 0


def test_what_is_told_when_the_keys_are_not_there(rawseq: Rawseq, seaweed: Seaweed) -> None:
    """No option: the message names it. No such block, an option beside a folder: each its own."""
    store = ("s3://rawseq/out", "--endpoint-url", seaweed.http_url)
    without = {"AWS_EC2_METADATA_DISABLED": "true"}  # else botocore looks for a cloud first
    for arguments, env, status, expected in (
        (("status", *store), without, 5, "--credentials-block"),
        (("status", *store, "--credentials-block", "nobody"), {}, 2, "'nobody': expected an existing block"),
        (("status", *store, "--credentials-block", "No Name"), {}, 2, "STORE: credentials_block: "),
        (("status", "out", "--credentials-block", KEYS), {}, 2, "expected beside an s3:// address"),
        (("probe", "http://127.0.0.1:1", "--credentials-block", KEYS), {}, 2, "beside a store, got a server"),
    ):
        ran = rawseq(*arguments, env=env)
        assert (ran.status, expected in ran.answer["error"]["message"]) == (status, True), ran.answer
        assert "Traceback" not in ran.stderr


def test_a_prefect_server_that_is_away(rawseq_env: dict[str, str]) -> None:
    """The block cannot be read: the message names Prefect's address, not the store."""
    api = f"http://127.0.0.1:{free_port()}/api"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "deployments.cli.main"),
            *("status", "s3://rawseq/out", "--credentials-block", KEYS),
        ],
        env=rawseq_env | {"PREFECT_API_URL": api},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )
    assert done.returncode == 5, done.stderr
    assert f"Prefect server {api}: expected its API" in done.stderr
    assert "Traceback" not in done.stderr
