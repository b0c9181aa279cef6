"""`rawseq export` and its flow as a user types and runs them."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from deployments.cli.cli import cli
from deployments.local.seaweed import start_seaweed
from tasks.errors import JobError
from tasks.job.spec import StoreSpec
from tasks.store.opening import open_store
from tests.support.forked import Template
from tests.support.jobs import Rawseq
from tests.support.stores import make_store, plain


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A dataset of one job below `store`."""
    make_store(tmp_path / "store", [[plain(number) for number in range(8)], [plain(9, code="repetition")]])
    return tmp_path / "store"


def test_export_prints_what_it_wrote(tmp_path: Path, rawseq: Rawseq, made: Path) -> None:
    """One JSON object with counts, digests and the cost of lengths; again: already complete."""
    arguments = ["export", str(made), "--to", "speculators", "--out", "out", "--mask", "think"]
    arguments += ["--include", "repetition", "--draft-vocab", "32", "--eval-share", "0.2"]
    ran = rawseq(*arguments)
    assert ran.status == 0, ran.stderr
    answer = ran.answer
    assert answer["state"] == "written"
    assert sum(answer["rows"]["written"].values()) == 9
    assert {entry["name"] for entry in answer["files"]} >= {"train/part-00000.jsonl", "token_freq.pt"}
    assert all(len(entry["sha256"]) == 64 for entry in answer["files"])
    assert [cost["longest"] for cost in answer["lengths"]] == [4096, 8192, 16384, 32768]
    assert answer["stores"][0]["batches"] == 2
    assert 0 < answer["draft_vocab"]["share_of_supervised"] <= 1
    assert rawseq(*arguments).answer["state"] == "already complete"


def test_export_to_s3(tmp_path: Path, rawseq: Rawseq, made: Path) -> None:
    """`--out s3://…` at a typed endpoint gets the files of a folder; STORE is a folder."""
    arguments = ["export", str(made), "--to", "parquet", "--out"]
    assert rawseq(*arguments, "out").status == 0
    with start_seaweed(tmp_path / "weed", bucket="exports") as server:
        keys = {name.upper(): value for name, value in server.credentials.items()} | {
            "AWS_REGION": "us-east-1"
        }
        ran = rawseq(*arguments, "s3://exports/a/b", "--endpoint-url", server.http_url, env=keys)
        assert ran.status == 0, ran.stderr
        spec = StoreSpec(uri="s3://exports/a/b", endpoint_url=server.http_url, region="us-east-1")
        with closing(open_store(spec, credentials=server.credentials)) as place:
            found = {info.key: place.get(info.key) for info in place.list("")}
    assert ran.answer["out"] == "s3://exports/a/b"
    out = tmp_path / "out"
    assert found == {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param(["--include", "nan"], "'nan': its ids cannot be proved", id="integrity-code"),
        pytest.param(["--max-length", "1"], "--max-length: ", id="too-short"),
        pytest.param(["--weight", "1", "--weight", "2"], "one for each of the 1 stores", id="weights"),
        pytest.param(["--weight", "0"], "--weight: expected a number in (0, 1000], got 0", id="no-weight"),
        pytest.param(["--endpoint-url", "http://h:1"], "expected beside an s3:// address", id="no-s3"),
        pytest.param(["--draft-vocab", "5000"], "at most the target's 1000 ids", id="draft-vocabulary"),
    ],
)
def test_bad_arguments_are_named(tmp_path: Path, made: Path, arguments: list[str], expected: str) -> None:
    """One line with the option, what was expected and what came; nothing is written."""
    out = tmp_path / "out"
    with pytest.raises(JobError) as error:
        cli.main(
            ["export", str(made), "--to", "specforge", "--out", str(out), *arguments], standalone_mode=False
        )
    assert expected in str(error.value)
    assert "\n" not in str(error.value)
    assert not list(out.rglob("*.jsonl"))


FLOW = """
import asyncio, json, sys
from prefect.blocks.system import Secret
from flows.export import export_dataset
from tasks.export.options import ExportedStore, ExportOptions, ExportPlace

if len(sys.argv) > 3:
    Secret(value=sys.argv[3]).save("export-keys", overwrite=True)
stores, options = [ExportedStore(uri=sys.argv[1])], ExportOptions(to="specforge")
out = ExportPlace(**json.loads(sys.argv[2]))
state = asyncio.run(export_dataset(stores, options, out, return_state=True))
print(state.type.value, state.message)
"""


def run_flow(template: Template, folder: Path, *arguments: str) -> None:
    """Run `export_dataset` over a real Prefect server: it completes with the rows of the store."""
    printed = template.run_code(FLOW, *arguments, folder=folder)
    assert "COMPLETED 8 train rows, 0 eval rows in" in printed


def test_the_flow_writes_the_same(tmp_path: Path, made: Path, template: Template) -> None:
    """Into a folder, and to S3 with the keys of a Prefect block, which are nowhere else."""
    run_flow(template, tmp_path, str(made), json.dumps({"uri": str(tmp_path / "out")}))
    rows = (tmp_path / "out" / "train" / "part-00000.jsonl").read_bytes()
    assert len(rows.splitlines()) == 8
    with start_seaweed(tmp_path / "weed", bucket="exports") as server:
        place = {"uri": "s3://exports/flow", "endpoint_url": server.http_url, "region": "us-east-1"}
        block = {"credentials_block": "export-keys"}
        run_flow(template, tmp_path, str(made), json.dumps(place | block), json.dumps(server.credentials))
        with closing(open_store(StoreSpec(**place), credentials=server.credentials)) as opened:
            assert opened.get("train/part-00000.jsonl") == rows
            assert opened.head("manifest.json") is not None
