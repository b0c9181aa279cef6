"""Stores as commit 7993c23 wrote them: the script that made `tests/data/stores_7993c23`.

Not a test module, and of no use on later code: what it wrote is kept so that later code is held to it. It ran
in a checkout of 7993c23, from its root, to which this file and `raw_files.py` alone were added:

    git checkout 7993c23
    python -m tests.compatibility.make_stores /srv/rawseq-fixtures tests/data/stores_7993c23

The first folder, which must not exist, is where the jobs are made, each in a folder of its own and by
relative addresses, against an embedded server with `--enable-deterministic-inference` on port 30000. The
second one gets of each what tests need: job file, prompts, store, journals, and what later code is held to
(`expected.json`).
"""

import json
import os
import shutil
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import yaml
from deployments.presets import STANDIN_MODEL
from deployments.seaweed import Seaweed, start_seaweed
from tasks.spec import StoreSpec
from tasks.storage.store import open_store
from tests.flows.forked import Fault, Template
from tests.jobs import write_prompts

from deployments.standin.launch import start_standin
from tests.compatibility.raw_files import journalled, rejected_in, shards_in
from tests.conftest import free_port, prefect_server

PORT = 30000
RUN_SECONDS = 300.0
POLL_SECONDS = 0.005
TRIES = 12

THINK = {"opener": "<think>", "closer": "</think>"}
CALLS = {"tool_begin": "<|tool_calls_section_begin|>", "tool_end": "<|tool_calls_section_end|>"}
TURNS = {"turn_starts": ["<|im_user|>", "<|im_assistant|>", "<|im_system|>"], "end": ["<|im_end|>"]}
REJECTING = {"on_length": "reject", "accepted_floor": 0.0}
MIX = [
    {"name": "on", "weight": 2, "template_args": {"thinking": True}, "temperature": 0.9},
    {"name": "off", "template_args": {"thinking": False}, "top_p": 0.8},
]
SOURCES = [
    {"uri": "prompts.jsonl", "weight": 2, "name": "sums"},
    {"uri": "more.jsonl", "weight": 1, "name": "more"},
]

JOBS: dict[str, dict[str, Any]] = {
    "complete": {
        "sampling": {"max_new_tokens": 40, "temperature": 1.0, "seed": 5, "logprobs_share": 0.5},
        "policy": REJECTING,
        "batch": {"rows": 5},
    },
    "half": {"sampling": {"max_new_tokens": 256, "seed": 7}, "batch": {"rows": 5, "in_flight": 1}},
    "mix": {
        "sampling": {"max_new_tokens": 24, "mix": MIX},
        "policy": {"accept": "intact", "accepted_floor": 0.0},
        "batch": {"rows": 5},
    },
    "grammar": {"model": {"grammar": THINK | CALLS | TURNS}, "batch": {"rows": 5}},
    "half-retry": {
        "sampling": {"max_new_tokens": 40, "temperature": 1.0, "seed": 6},
        "policy": REJECTING,
        "batch": {"rows": 9},
    },
    "s3": {"prompts": {"sources": SOURCES}, "sampling": {"max_new_tokens": 40}, "batch": {"rows": 7}},
    "s3-half": {"batch": {"rows": 9, "in_flight": 1, "journal_upload_seconds": 1.0}},
}


def write_job(folder: Path, name: str) -> None:
    """Write a job, its prompts and a link to its tokenizer into a new folder."""
    folder.mkdir(parents=True)
    (folder / "model").symlink_to(STANDIN_MODEL)
    write_prompts(folder / "prompts.jsonl", 9, first=100)  # the probe asks 2+2
    if name == "s3":
        write_prompts(folder / "more.jsonl", 4, first=107)  # two of them again
    job: dict[str, Any] = {
        "name": name,
        "model": {"tokenizer": "./model"},
        "prompts": {"sources": ["prompts.jsonl"]},
        "servers": {"urls": [f"http://127.0.0.1:{PORT}"]},
        "sampling": {"max_new_tokens": 256},
        "policy": {"accepted_floor": 0.5},
        "batch": {"journal_dir": "journals"},
        "store": {"uri": f"s3://rawseq/{name}" if name.startswith("s3") else "store"},
    }
    for section, fields in JOBS[name].items():
        job[section] = job.get(section, {}) | fields
    (folder / "job.yaml").write_text(yaml.safe_dump(job, sort_keys=False))


class Maker:
    """Makes stores below one folder, by `rawseq` commands.

    Args:
        folder: of all jobs.
        template: forks the commands.
        s3: has the stores that are not folders.
    """

    def __init__(self, folder: Path, template: Template, s3: Seaweed) -> None:
        self.folder, self.template, self.s3 = folder, template, s3

    def rawseq(self, name: str, *arguments: str, fault: Fault | None = None) -> tuple[int, Any]:
        """Run a command in a job's folder; return its exit status and what it printed last."""
        log = self.folder / name / "log"
        out = log.with_suffix(".out")
        pid = self.template.start(log, *arguments, "--json", out=out, fault=fault)
        status = self.template.wait(pid, RUN_SECONDS)
        lines = out.read_text().splitlines()
        return status, json.loads(lines[-1]) if lines else None

    def done(self, name: str, *arguments: str) -> Any:
        """Run a command that must succeed; return what it printed last."""
        status, answer = self.rawseq(name, *arguments)
        assert status == 0, (self.folder / name / "log").read_text()[-3000:]
        return answer

    def fresh(self, name: str) -> Path:
        """Write a job's folder anew."""
        shutil.rmtree(self.folder / name, ignore_errors=True)
        write_job(self.folder / name, name)
        return self.folder / name

    def quiet(self, name: str) -> list[str]:
        """Make a job undisturbed, elsewhere; return the sha256 of its shards in batch order."""
        apart = ["--set", "store.uri=quiet", "--set", "batch.journal_dir=quiet-journals"]
        self.done(name, "run", "job.yaml", *apart)
        return shards_in(self.folder / name / "quiet")

    def half(self) -> None:
        """Kill a run in the middle of a write to a journal, once another batch is committed."""
        for write in range(4, TRIES):
            folder = self.fresh("half")
            self.rawseq("half", "run", "job.yaml", fault=Fault("kill", "/000001/", write))
            if list(folder.glob("store/*/receipts/*")) and journalled(folder / "journals"):
                return
        raise AssertionError("no kill left a journal beside a receipt")

    def half_retry(self, codes: list[str]) -> None:
        """Kill a retry in the middle of a write to its journal."""
        for write in range(3, TRIES):
            folder = self.fresh("half-retry")
            self.done("half-retry", "run", "job.yaml")
            self.rawseq("half-retry", "retry", "store", *codes, fault=Fault("kill", "/000000.g1/", write))
            made = set(journalled(folder / "journals")) & set(rejected_in(folder / "store"))
            if made and not list(folder.glob("store/*/receipts/*.g1.json")):
                return
        raise AssertionError("no kill left a journal of a retry with a new row in it")

    def half_on_s3(self) -> None:
        """Kill a run when some of its journal is in the store, and keep nothing of its machine."""
        folder = self.fresh("s3-half")
        pid = self.template.start(folder / "log", "run", "job.yaml", "--json")
        while not journalled(self.download("s3-half") / "store"):
            assert self.template.running(pid), (folder / "log").read_text()[-3000:]
            time.sleep(POLL_SECONDS)  # polling for the first copy in the store
        self.template.kill(pid)
        assert journalled(self.download("s3-half") / "store"), "the run has ended meanwhile"
        shutil.rmtree(folder / "journals")

    def download(self, name: str) -> Path:
        """Write the objects of a store on S3 into the job's folder, each at its key."""
        folder = self.folder / name
        shutil.rmtree(folder / "store", ignore_errors=True)
        spec = StoreSpec(
            uri=f"s3://{self.s3.bucket}/{name}", endpoint_url=self.s3.http_url, region="us-east-1"
        )
        with closing(open_store(spec, credentials=self.s3.credentials)) as store:
            for info in store.list(""):
                if "/_probe/" in info.key:  # of a run that starts at this moment
                    continue
                path = folder / "store" / info.key
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(store.get(info.key))
        return folder

    def expect(self, name: str, **more: Any) -> None:
        """Write what later code is held to."""
        folder = self.folder / name
        (job,) = folder.glob("store/*/job.json")
        found = {"job_id": json.loads(job.read_bytes())["job_id"], **more}
        (folder / "expected.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


def cut(answer: Any) -> list[str]:
    """Return the arguments that ask for every cut row of a run again."""
    return [f"--rejected={code}" for code in answer["rows"]["by_verdict"] if code.startswith("cut_in")]


def make_all(maker: Maker) -> None:
    """Make every store."""
    maker.fresh("complete")
    codes = cut(maker.done("complete", "run", "job.yaml"))
    maker.expect("complete", rows=maker.done("complete", "retry", "store", codes[0])["rows"])
    for name in ("mix", "grammar", "s3"):
        maker.fresh(name)
        rows = maker.done(name, "run", "job.yaml")["rows"]
        if name == "s3":
            maker.download(name)
        maker.expect(name, rows=rows)
    maker.half()
    left = journalled(maker.folder / "half" / "journals")
    maker.expect("half", journalled=left, shards=maker.quiet("half"))
    maker.fresh("half-retry")
    codes = cut(maker.done("half-retry", "run", "job.yaml"))
    maker.half_retry(codes)
    left = journalled(maker.folder / "half-retry" / "journals")
    maker.expect("half-retry", journalled=left, codes=codes, shards=quiet_retry(maker, codes))
    make_half_on_s3(maker)


def make_half_on_s3(maker: Maker) -> None:
    """Make the store whose journal another machine finds on S3."""
    maker.half_on_s3()
    left = journalled(maker.folder / "s3-half" / "store")
    maker.expect("s3-half", journalled=left, shards=maker.quiet("s3-half"))


def quiet_retry(maker: Maker, codes: list[str]) -> list[str]:
    """Make the job of the killed retry elsewhere, and retry it there; return its last shard's sha256."""
    maker.quiet("half-retry")
    maker.done("half-retry", "retry", "quiet", *codes, "--set", "batch.journal_dir=quiet-journals")
    return shards_in(maker.folder / "half-retry" / "quiet")[-1:]


def keep(made: Path, kept: Path) -> None:
    """Copy what tests need of a job's folder; reports are large, and no verb reads them."""
    kept.mkdir(parents=True)
    for name in ("job.yaml", "expected.json", "prompts.jsonl", "more.jsonl"):
        if (made / name).exists():
            shutil.copy(made / name, kept / name)
    for name in ("store", "journals"):
        if (made / name).exists():
            shutil.copytree(made / name, kept / name, ignore=shutil.ignore_patterns("report.html"))


def main(folder: Path, out: Path) -> None:
    """Make every store below a folder; keep what tests need below another."""
    folder.mkdir(parents=True)
    env = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "PREFECT_"))}
    servers, port = folder / "servers", free_port()
    servers.mkdir()
    with ExitStack() as stack:
        model = os.path.relpath(STANDIN_MODEL)
        flags = ["--model-path", model, "--enable-deterministic-inference"]
        standin = start_standin(flags, servers / "standin.log", port=PORT)
        stack.callback(standin.end)
        s3 = stack.enter_context(start_seaweed(servers / "s3"))
        stack.enter_context(prefect_server(servers, port))
        env |= {"PREFECT_HOME": str(servers), "PREFECT_API_URL": f"http://127.0.0.1:{port}/api"}
        env |= {"PREFECT_SERVER_ANALYTICS_ENABLED": "false"} | s3.environment()
        template = stack.enter_context(Template(env, servers / "template.log"))
        make_all(Maker(folder, template, s3))
    for name in JOBS:
        keep(folder / name, out / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
