"""Bad input and bad surroundings: each ends with a message that names the place, expected and got."""

import json
import resource
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from deployments.local.presets import STANDIN_MODEL
from deployments.local.seaweed import Seaweed, start_seaweed
from deployments.standin.launch import Standin
from tasks.dataset.shard_reader import decode_provenance, decode_rejected, decode_shard
from tasks.errors import IdentityError
from tasks.job.jobfile import load_job
from tasks.ledger.ledger import Ledger
from tasks.run.run import open_run
from tests.conftest import free_port
from tests.support.jobs import Rawseq, opened, write_job, write_prompts
from tests.support.prefect_api import make_block

GOOD = '{"id": "a", "prompt": "hi"}\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(GOOD + '{"id": "b", "prompt": \n', ["p.jsonl:2"], id="torn-json"),
        pytest.param(GOOD + '{"id": "b", "text": "hi"}\n', ["p.jsonl:2", "prompt"], id="no-prompt-field"),
        pytest.param(
            GOOD + '{"id": "b", "prompt": 7}\n', ["p.jsonl:2", "prompt", "7"], id="prompt-is-number"
        ),
        pytest.param(GOOD + GOOD, ["p.jsonl:2", "p.jsonl:1"], id="duplicate-id"),
        pytest.param("", ["p.jsonl", "empty"], id="empty-file"),
    ],
)
def test_a_bad_prompt_file_stops_before_generation(
    tmp_path: Path, rawseq: Rawseq, text: str, expected: list[str]
) -> None:
    """Exit 2 with file and line; no server is asked (none runs here) and nothing is planned."""
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(text)
    job = write_job(tmp_path / "job.yaml", f"http://127.0.0.1:{free_port()}", prompts, tmp_path / "out")
    ran = rawseq("run", str(job))
    assert ran.status == 2, ran.stderr
    assert ran.answer["error"]["type"] == "SourceError"
    assert "Traceback" not in ran.stderr
    assert ran.stderr.count("p.jsonl:2") <= 1, "it is told once"
    for part in expected:
        assert part in ran.answer["error"]["message"]
    assert not list((tmp_path / "out").rglob("plan/*"))
    shown = rawseq("render", str(job))
    assert (shown.status, shown.answer) == (ran.status, ran.answer), "render says what the run says"


def test_a_journal_folder_that_is_a_file_is_named(tmp_path: Path, rawseq: Rawseq) -> None:
    """Exit 5, one line with the field, and nothing is made in the store."""
    prompts = write_prompts(tmp_path / "p.jsonl", 2)
    for place in (prompts, prompts / "below"):
        job = write_job(
            tmp_path / "job.yaml",
            "http://127.0.0.1:1",
            prompts,
            tmp_path / "out",
            batch={"journal_dir": str(place)},
        )
        ran = rawseq("run", str(job))
        assert ran.status == 5, ran.stderr
        assert ran.answer["error"]["message"] == (
            f"batch.journal_dir: expected a folder that can be written, got {place}: Not a directory"
        )
        assert "Traceback" not in ran.stderr
        assert not list((tmp_path / "out").rglob("job.json"))


def test_a_bad_record_can_be_recorded_instead(tmp_path: Path, rawseq: Rawseq, standin: Standin) -> None:
    """`prompts.on_bad_row: reject` keeps the record as a rejected row; rows in = accepted + rejected."""
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(GOOD + '{"id": "b", "prompt": 7}\n')
    job = write_job(
        tmp_path / "job.yaml", standin.url, prompts, tmp_path / "out", prompts={"on_bad_row": "reject"}
    )
    ran = rawseq("run", str(job))
    assert ran.status == 0, ran.stderr
    assert ran.answer["rows"]["total"] == 2
    assert ran.answer["rows"]["by_verdict"]["bad_record"] == 1


def test_render_shows_what_the_run_sends(tmp_path: Path, rawseq: Rawseq, standin: Standin) -> None:
    """Same rows, same order inside mixed batches, same prompt ids, same refusals, same batches apart."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(
            "".join(f'{{"id": "{n}", "prompt": "What is {n}+{n % 5}?"}}\n' for n in range(12))
        )
    (tmp_path / "exam.jsonl").write_text('{"prompt": "What is 7+2?"}\n')
    sources = [{"uri": str(tmp_path / f"{name}.jsonl"), "weight": w} for name, w in (("a", 2), ("b", 1))]
    job = write_job(
        tmp_path / "job.yaml",
        standin.url,
        tmp_path / "a.jsonl",
        tmp_path / "out",
        prompts={"sources": sources, "exclude": [str(tmp_path / "exam.jsonl")]},
        policy={"accept": "intact", "accepted_floor": 0.0},
    )
    shown = rawseq("render", str(job), "--n", "24").objects[:-1]
    ran = rawseq("run", str(job))
    assert ran.status == 0, ran.stderr
    store, sent, refused = opened(tmp_path / "out"), {}, {}
    order: list[str] = []
    for receipt in Ledger(store, store.uri.rpartition("/")[2]).iter_receipts():
        order += [row["row_id"] for row in decode_provenance(store.get(receipt.provenance.key))]
        if receipt.shard is not None:
            rows = decode_shard(store.get(receipt.shard.key))
            lengths = rows.prompt_lengths
            sent |= {n: rows.sequences.row(i).tolist()[: lengths[i]] for i, n in enumerate(rows.row_ids)}
        if receipt.rejected is not None:
            rows = decode_rejected(store.get(receipt.rejected.key))
            refused |= {name: rows.verdicts[i] for i, name in enumerate(rows.row_ids)}
    assert [row["row_id"] for row in shown] == order
    assert {row["row_id"]: row["input_ids"] for row in shown if "refused" not in row} == sent
    assert {row["row_id"]: row["refused"]["code"] for row in shown if "refused" in row} == refused
    assert set(refused.values()) == {"duplicate"}
    first = rawseq("render", str(job), "--n", "3").objects[:-1]
    assert first == shown[:3], "fewer rows of a mixed batch are its first ones"


def test_a_server_that_is_down_is_named(tmp_path: Path, rawseq: Rawseq) -> None:
    """After the time limit the error names the URL and how long it was waited for. Exit 5."""
    url = f"http://127.0.0.1:{free_port()}"
    job = write_job(
        tmp_path / "job.yaml",
        url,
        write_prompts(tmp_path / "p.jsonl", 2),
        tmp_path / "out",
        servers={"ready_timeout_seconds": 2.0},
    )
    ran = rawseq("run", str(job))
    assert ran.status == 5, ran.stderr
    assert url in ran.answer["error"]["message"]
    assert "for 2 s" in ran.answer["error"]["message"]


def test_an_unknown_tokenizer_is_named(tmp_path: Path, rawseq: Rawseq) -> None:
    """A folder without a tokenizer is refused by its name. Exit 2."""
    job = write_job(
        tmp_path / "job.yaml",
        "http://127.0.0.1:1",
        write_prompts(tmp_path / "p.jsonl", 2),
        tmp_path / "out",
        model={"tokenizer": str(tmp_path / "absent-model")},
    )
    ran = rawseq("run", str(job))
    assert ran.status == 2, ran.stderr
    assert ran.answer["error"]["type"] == "TokenizerError"
    assert "absent-model" in ran.answer["error"]["message"]


def test_a_job_that_resolves_differently_is_refused(tmp_path: Path, rawseq: Rawseq, standin: Standin) -> None:
    """The same job over a changed template stops and shows both hashes. Exit 2."""
    model = tmp_path / "model"
    shutil.copytree(STANDIN_MODEL, model)
    job = write_job(
        tmp_path / "job.yaml",
        standin.url,
        write_prompts(tmp_path / "p.jsonl", 2),
        tmp_path / "out",
        model={"tokenizer": str(model)},
    )
    assert rawseq("run", str(job)).status == 0
    template = model / "chat_template.jinja"
    template.write_text(template.read_text() + "{# changed #}")
    ran = rawseq("run", str(job))
    assert ran.status == 2, ran.stderr
    assert ran.answer["error"]["type"] == "IdentityError"
    assert "template_sha256" in ran.answer["error"]["message"]
    assert "stored" in ran.answer["error"]["message"]


@pytest.fixture(scope="module")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """A real S3 server with one bucket."""
    with start_seaweed(tmp_path_factory.mktemp("s3"), bucket="rawseq") as server:
        yield server


def _keys(**changed: str) -> Callable[[Seaweed], dict[str, str]]:
    return lambda server: server.environment() | changed


@pytest.mark.parametrize(
    ("uri", "environment", "expected"),
    [
        pytest.param("s3://absent-bucket/x", _keys(), ["absent-bucket"], id="bucket-missing"),
        pytest.param(
            "s3://rawseq/x", _keys(AWS_SECRET_ACCESS_KEY="wrong"), ["credentials"], id="wrong-secret"
        ),
    ],
)
def test_a_store_that_refuses_is_named(
    tmp_path: Path,
    rawseq: Rawseq,
    seaweed: Seaweed,
    uri: str,
    environment: Callable[[Seaweed], dict[str, str]],
    expected: list[str],
) -> None:
    """A missing bucket and wrong keys each end with exit 5, say what to do, and show no secret."""
    env = environment(seaweed)
    job = write_job(tmp_path / "job.yaml", "http://127.0.0.1:1", write_prompts(tmp_path / "p.jsonl", 2), uri)
    ran = rawseq("run", str(job), env=env)
    assert ran.status == 5, ran.stderr
    for part in expected:
        assert part in ran.answer["error"]["message"]
    for secret in (env["AWS_SECRET_ACCESS_KEY"], seaweed.environment()["AWS_SECRET_ACCESS_KEY"]):
        assert secret not in ran.stderr + json.dumps(ran.answer)


def test_the_flow_writes_to_a_real_s3_server(
    tmp_path: Path, rawseq: Rawseq, seaweed: Seaweed, standin: Standin
) -> None:
    """The same flow commits to S3, says complete there, and does nothing the second time."""
    job = write_job(
        tmp_path / "job.yaml", standin.url, write_prompts(tmp_path / "p.jsonl", 9), "s3://rawseq/real"
    )
    env = seaweed.environment()
    ran = rawseq("run", str(job), env=env)
    assert ran.status == 0, ran.stderr
    store: dict[str, Any] = ran.answer
    assert rawseq("status", store["store"], env=env).status == 0
    assert rawseq("verify", store["store"], env=env).answer["trainable"] is True
    assert rawseq("run", str(job), env=env).answer["generated_rows"] == 0


def last_progress(api: str) -> str:
    """Return what the newest progress artifact says."""
    wanted = {"artifacts": {"type": {"any_": ["progress"]}}, "sort": "CREATED_DESC", "limit": 1}
    request = urllib.request.Request(
        f"{api}/artifacts/filter", json.dumps(wanted).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(json.loads(answer.read())[0]["description"])


@pytest.mark.parametrize("kind", ["secret", "aws-credentials"])
def test_keys_from_a_prefect_block(
    tmp_path: Path, rawseq: Rawseq, prefect_api: str, seaweed: Seaweed, standin: Standin, kind: str
) -> None:
    """A Secret block with JSON, or an AwsCredentials block as the UI makes it: prefect-aws is not needed."""
    keys = {name.lower(): value for name, value in seaweed.environment().items() if "_KEY" in name}
    name = f"keys-{kind}"
    make_block(prefect_api, kind, name, {"value": json.dumps(keys)} if kind == "secret" else keys)
    job = write_job(
        tmp_path / "job.yaml",
        standin.url,
        write_prompts(tmp_path / "p.jsonl", 2),
        f"s3://rawseq/{kind}",
        store={
            "endpoint_url": seaweed.endpoint_url,
            "region": "us-east-1",
            "credentials_block": name if kind == "secret" else f"{kind}/{name}",
        },
    )
    assert rawseq("run", str(job)).status == 0
    absent = rawseq("run", str(job), "--set", "store.credentials_block=nobody")
    assert absent.status == 2
    assert "'nobody': expected an existing block" in absent.answer["error"]["message"]


async def test_a_refused_job_leaves_no_connection(
    tmp_path: Path, seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the job resolves otherwise than its job.json, the store that was opened to see it is closed."""
    for name, value in seaweed.environment().items():
        monkeypatch.setenv(name, value)
    model = tmp_path / "model"
    shutil.copytree(STANDIN_MODEL, model)
    prompts = write_prompts(tmp_path / "p.jsonl", 2)
    job = load_job(
        write_job(
            tmp_path / "job.yaml", "http://h:1", prompts, "s3://rawseq/leak", model={"tokenizer": str(model)}
        )
    )
    async with open_run(job, "first"):
        pass
    template = model / "chat_template.jinja"
    template.write_text(template.read_text() + "{# changed #}")
    port = int(seaweed.endpoint_url.rpartition(":")[2])
    with pytest.raises(IdentityError):
        async with open_run(job, "second"):
            pass
    connections = psutil.Process().net_connections("tcp")
    assert not [c for c in connections if c.raddr and c.raddr.port == port and c.status == "ESTABLISHED"]


def test_a_full_disk_stops_the_run_and_it_resumes(
    tmp_path: Path, rawseq_env: dict[str, str], rawseq: Rawseq, standin: Standin
) -> None:
    """When the journal cannot grow the run ends with exit 5 and what to do; with room again it goes on.

    The limit is the process's largest file (RLIMIT_FSIZE), above the store probe's 70 kB: the write fails as
    on a full disk, without root.
    """
    job = write_job(
        tmp_path / "job.yaml",
        standin.url,
        write_prompts(tmp_path / "p.jsonl", 160),
        tmp_path / "out",
        batch={"rows": 160},
    )
    done = subprocess.run(
        [sys.executable, "-m", "deployments.cli.main", "run", str(job), "--json"],
        cwd=tmp_path,
        env=rawseq_env,
        capture_output=True,
        text=True,
        timeout=200,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (76_000, 76_000)),
    )
    assert done.returncode == 5, done.stderr
    error = json.loads(done.stdout.splitlines()[-1])["error"]
    assert error["type"] == "SurroundingsError"
    assert "journals" in error["message"]
    assert not list((tmp_path / "out").rglob("receipts/*"))
    ran = rawseq("run", str(job))
    assert ran.status == 0, ran.stderr
    total = ran.answer["rows"]["total"]
    assert 0 < ran.answer["generated_rows"] < total
    assert f"{total} of about {total} rows" in last_progress(rawseq_env["PREFECT_API_URL"])
    assert "batch.rows" not in ran.stderr, "nothing changed, so nothing is noticed"
    assert rawseq("verify", str(tmp_path / "out")).answer["trainable"] is True
