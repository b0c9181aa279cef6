"""SIGKILL of any process at any instant: the finished dataset is that of an undisturbed run, byte for byte.

`RAWSEQ_SOAK_KILLS` sets how many kills (default 20; `make soak` takes 200), `RAWSEQ_SOAK_SEED` repeats the
choice of processes and phases. With `-s` every job is one line, and a table ends it.
"""

import itertools
import os
import random
import re
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue

import attrs
import pytest

from tasks.audit.reread import audit
from tasks.job.spec import StoreSpec
from tasks.store.opening import find_job
from tests.flows.counted import rows_in, shard_names
from tests.flows.killable import SERVERS, Killable
from tests.support.forked import Template
from tests.support.jobs import write_job, write_prompts

KILLS = int(os.environ.get("RAWSEQ_SOAK_KILLS", "20"))
SEED = int(os.environ.get("RAWSEQ_SOAK_SEED", "20261129"))
LANES = max(1, min(4, KILLS // 5))
"""Jobs under way at once, so that a server is killed under jobs in different phases."""

KILLS_A_JOB = 8
RECORDS, IN_FLIGHT = 9, 4
PROCESSES = ("flow",) * 4 + ("standin", "s3") * 3 + ("prefect",)
RUNS = 20
POLL_SECONDS = 0.05
STALLED_SECONDS = 900.0

PHASES: dict[str, tuple[str, float]] = {  # line of the log with which it begins, seconds that it may last
    "starting": ("", 3.0),
    "probing": ("batches planned", 1.0),
    "generating": ("render_prompts .* Finished", 1.0),
    "checking": ("generate_tokens .* rows", 0.1),
    "uploading": ("check_tokens .* Finished", 0.5),
    "committing": ("upload_shard .* Finished", 0.3),
    "publishing": ("committed [0-9]+ rows", 0.5),
}


@attrs.frozen(slots=True)
class Job:
    """One job that was shot at and taken to its end.

    Args:
        number: of the job.
        kills: (process, phase of this job) of every kill that was meant for it.
        hits: how many kills it lived through: those, and servers killed for other jobs meanwhile.
        runs: how many runs it took.
        wasted: rows whose generation was begun for nothing, counted at the servers.
    """

    number: int
    kills: tuple[tuple[str, str], ...]
    hits: int
    runs: int
    wasted: int

    def line(self) -> str:
        """Return it as a line."""
        kills = ", ".join(" ".join(kill) for kill in self.kills)
        return f"{self.number:3d}: {self.runs} runs, {self.hits} kills, {self.wasted} rows wasted: {kills}"


@attrs.frozen(slots=True)
class Lane:
    """One job after another over the same prompts, each in a prefix of its own."""

    number: int
    folder: Path
    servers: Killable
    template: Template
    expected: list[str]
    keys: dict[str, str]
    shots: "SimpleQueue[None]"

    def job(self, number: int, dice: random.Random) -> Job:
        """Run a job again and again, with kills at random instants, until it is complete; then check it."""
        uri = f"s3://{self.servers.s3.bucket}/job-{number}"
        path = self.folder / f"job-{number}.yaml"
        write(path, self.servers, self.folder / "p.jsonl", uri, self.folder / f"journals-{number}")
        before, start = self.servers.started(), time.monotonic()
        kills: list[tuple[str, str]] = []
        runs, status = 0, -1
        while status != 0:
            self.servers.wait()  # a command without its Prefect server ends at once
            log = self.folder / f"{number}-{runs}.log"
            pid = self.template.start(log, "run", str(path), "--json")
            runs += 1
            while len(kills) < KILLS_A_JOB and self.instant(log, pid, dice) and self.shot():
                process = dice.choice(PROCESSES)
                kills.append((process, phase_of(log)))
                if process == "flow":
                    self.template.kill(pid)
                else:
                    self.servers.kill(process)
            status = self.ended(log, pid)
            assert status == 0 or runs < RUNS, f"job {number}, seed {SEED}, {kills}: " + _text(log)[-3000:]
        flow = sum(process == "flow" for process, _ in kills)
        hits = flow + sum(start <= when for when, _ in self.servers.kills)
        return Job(number, tuple(kills), hits, runs, self.check(uri, before))

    def instant(self, log: Path, pid: int, dice: random.Random) -> bool:
        """Wait for a random instant in this phase or the next two; False when the run ended before."""
        names = list(PHASES)
        here = names.index(phase_of(log))
        pattern, seconds = PHASES[dice.choice(names[here : here + 3])]
        deadline = time.monotonic() + STALLED_SECONDS
        while not re.search(pattern, _text(log)):
            if not self.template.running(pid):
                return False
            assert time.monotonic() < deadline, _text(log)[-3000:]
            time.sleep(POLL_SECONDS)
        time.sleep(dice.uniform(0.0, seconds))  # the random instant
        return self.template.running(pid)

    def shot(self) -> bool:
        """Take one of the kills that are left; False when there is none."""
        try:
            self.shots.get_nowait()
        except Empty:
            return False
        return True

    def ended(self, log: Path, pid: int) -> int:
        """Wait for a run's end; return its exit status."""
        try:
            return self.template.wait(pid, STALLED_SECONDS)
        except TimeoutError:
            raise AssertionError(_text(log)[-3000:]) from None

    def check(self, uri: str, before: Counter[str]) -> int:
        """Every row once, shards byte for byte as expected; return how many rows were begun for nothing."""
        spec = StoreSpec(uri=uri, endpoint_url=self.servers.s3.http_url, region="us-east-1")
        store = find_job(spec, credentials=self.servers.s3.credentials)
        try:
            assert rows_in(store) == self.keys, f"{uri} (seed {SEED})"
            assert shard_names(store) == self.expected, f"{uri} (seed {SEED})"
            report = audit(store)
            assert report.trainable, report.reason
        finally:
            store.close()
        begun = self.servers.started()
        return sum(begun[key] - before[key] for key in self.keys.values()) - len(self.keys)


def phase_of(log: Path) -> str:
    """Return the phase that a run's log shows."""
    text = _text(log)
    return [name for name, (pattern, _) in PHASES.items() if re.search(pattern, text)][-1]


def _text(log: Path) -> str:
    return log.read_text() if log.exists() else ""


def write(job: Path, servers: Killable, prompts: Path, uri: str, journals: Path) -> None:
    """Write the job file of one trial."""
    store = {"uri": uri}
    if uri.startswith("s3://"):
        store |= {"endpoint_url": servers.s3.http_url, "region": "us-east-1"}
    write_job(
        job,
        servers.standin.url,
        prompts,
        uri,
        sampling={"max_new_tokens": 64},
        batch={"rows": RECORDS // 3, "in_flight": IN_FLIGHT, "journal_dir": str(journals)},
        store=store,
    )


def open_lane(
    number: int, folder: Path, servers: Killable, template: Template, shots: "SimpleQueue[None]"
) -> Lane:
    """Run a lane's job undisturbed, into a folder: what every trial of the lane must come to."""
    folder.mkdir()
    prompts = write_prompts(folder / "p.jsonl", RECORDS, first=100 * (number + 1))  # the probe asks 2+2
    write(folder / "quiet.yaml", servers, prompts, str(folder / "quiet"), folder / "journals")
    lane = Lane(number, folder, servers, template, [], {}, shots)
    log = folder / "quiet.log"
    assert lane.ended(log, template.start(log, "run", str(folder / "quiet.yaml"), "--json")) == 0, _text(log)
    store = find_job(StoreSpec(uri=str(folder / "quiet")))
    return attrs.evolve(lane, expected=shard_names(store), keys=rows_in(store))


def campaign(lanes: list[Lane], shots: "SimpleQueue[None]") -> list[Job]:
    """Run jobs on all lanes at once until no kill is left."""
    done: list[Job] = []
    numbers = itertools.count()
    lock = threading.Lock()

    def work(lane: Lane) -> None:
        while True:
            if shots.empty():
                return
            number = next(numbers)
            job = lane.job(number, random.Random(f"{SEED}/{number}"))
            with lock:
                done.append(job)
            print(job.line(), flush=True)

    with ThreadPoolExecutor(len(lanes)) as pool:
        for result in [pool.submit(work, lane) for lane in lanes]:
            result.result()
    return done


def table(jobs: list[Job]) -> str:
    """Return a Markdown table: kills by process and phase."""
    kills = Counter(kill for job in jobs for kill in job.kills)
    lines = [f"| killed | {' | '.join(PHASES)} | all |", "|" + "---|" * (len(PHASES) + 2)]
    for name in ("flow", *SERVERS):
        counts = [kills[name, phase] for phase in PHASES]
        lines.append(f"| {name} | {' | '.join(map(str, counts))} | {sum(counts)} |")
    return "\n".join(lines)


@pytest.mark.slow
@pytest.mark.timeout(14_400)
def test_kills_leave_the_undisturbed_dataset(tmp_path: Path, rawseq_env: dict[str, str]) -> None:
    """Flow, SGLang server, S3 server and Prefect server are killed: nothing is lost, doubled or changed."""
    start = time.monotonic()
    shots: SimpleQueue[None] = SimpleQueue()
    for _ in range(KILLS):
        shots.put(None)
    with (
        Killable(tmp_path, rawseq_env) as servers,
        Template(servers.environment(), tmp_path / "template.log") as template,
    ):
        with ThreadPoolExecutor(LANES) as pool:
            lanes = list(
                pool.map(
                    lambda number: open_lane(number, tmp_path / f"lane-{number}", servers, template, shots),
                    range(LANES),
                )
            )
        jobs = campaign(lanes, shots)
    kills, runs, wasted = (
        sum(len(job.kills) for job in jobs),
        sum(job.runs for job in jobs),
        sum(job.wasted for job in jobs),
    )
    print(
        f"seed {SEED}: {kills} kills, {len(jobs)} jobs of {len(lanes[0].keys)} rows, {runs} runs, "
        f"{wasted} rows wasted, {time.monotonic() - start:.0f} s\n{table(jobs)}"
    )
    for job in jobs:
        assert job.wasted <= job.hits * 2 * IN_FLIGHT, job.line()  # a window may double at a look
