"""S3 faults between us and a real server: the job ends as if undisturbed, or stops with advice."""

import asyncio
import datetime
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest

from deployments.local.seaweed import Seaweed, start_seaweed
from tasks.audit.reread import audit
from tasks.errors import DataError, LaterError, SurroundingsError
from tasks.job.spec import StoreSpec
from tasks.run.run import Run
from tasks.store import s3_client, s3_parts
from tasks.store.contract import ObjectInfo, ObjectStore
from tasks.store.opening import open_store
from tasks.store.s3 import S3Store
from tests.support.fault_proxy import Fault, FaultProxy


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Throttled calls wait a tenth of a second, and a read times out after one."""
    monkeypatch.setattr("tasks.store.s3_retry._SLOW_WAIT_SECONDS", 0.1)
    monkeypatch.setattr(s3_client, "READ_SECONDS", 1.0)


@pytest.fixture
def through(seaweed: Seaweed, s3_spec: StoreSpec) -> Iterator[Callable[..., tuple[S3Store, FaultProxy]]]:
    """Open this test's store through a proxy with faults."""
    open_now: list[tuple[S3Store, FaultProxy]] = []

    def start(*faults: Fault, deadline: float = 20.0) -> tuple[S3Store, FaultProxy]:
        proxy = FaultProxy(seaweed.port, *faults)
        proxy.__enter__()
        spec = s3_spec.model_copy(update={"endpoint_url": proxy.url, "deadline_seconds": deadline})
        store = open_store(spec, "job", seaweed.credentials)
        assert isinstance(store, S3Store)
        open_now.append((store, proxy))
        return store, proxy

    yield start
    for store, proxy in open_now:
        store.close()
        proxy.__exit__()


FAULTS = {
    "response lost after the put": [Fault("lose_response", times=3)],
    "response lost after a shard's put": [Fault("lose_response", path="shards/", times=2)],
    "response lost after a receipt's put": [Fault("lose_response", path="receipts/", times=2)],
    "reset in the middle of an upload": [Fault("reset_upload", times=5)],
    "half an upload reaches the server": [Fault("half_upload", path="shards|receipts", times=3)],
    "503 SlowDown": [Fault("error", code="SlowDown", times=4)],
    "500 InternalError": [Fault("error", code="InternalError", status=500, times=4)],
    "429 TooManyRequests on reads": [Fault("error", "GET", "", 3, "TooManyRequests", 429)],
    "409 ConditionalRequestConflict": [
        Fault("error", "PUT", "receipts", 2, "ConditionalRequestConflict", 409)
    ],
    "answer cut short": [Fault("truncate", "GET", times=3)],
    "answer slower than the read timeout": [Fault("slow", "PUT", "receipts|shards", 2, "1.5")],
    "delivered twice": [Fault("duplicate", times=50)],
    "delivered late": [Fault("late", path="shards|receipts|provenance", times=3)],
    "byte flipped on the way up": [Fault("corrupt_upload", times=4)],
    "byte flipped on the way down": [Fault("corrupt_response", "GET", "job/.*json", times=2)],
    "heads fail": [Fault("error", "HEAD", "", 5, "x", 503)],
    "everything at once": [
        Fault("lose_response", times=2),
        Fault("error", code="SlowDown", times=2),
        Fault("corrupt_upload", path="shards", times=1),
        Fault("late", path="receipts", times=1),
        Fault("truncate", "GET", times=1),
    ],
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_that_pass(
    name: str,
    through: Any,
    tmp_path: Path,
    prompts: Callable[..., Path],
    kit: Any,
    seaweed: Seaweed,
    s3_spec: Any,
) -> None:
    """The job ends complete: one receipt a batch, every byte as sent, the same shards as undisturbed."""
    spec = kit.job_spec(tmp_path, str(prompts()))
    undisturbed = open_store(spec.store, spec.job_id)
    kit.run_job(undisturbed, spec)
    faults = [Fault(f.kind, f.method, f.path, f.times, f.code, f.status) for f in FAULTS[name]]
    store, proxy = through(*faults)
    kit.run_job(store, spec)
    ledger = kit.run_job(store, spec)  # finds everything done: reads job, plan and receipts
    ledger.receipts()
    assert proxy.broken > 0
    assert not ledger.pending(ledger.plan())
    direct = open_store(s3_spec, "job", seaweed.credentials)
    report = audit(direct, kit.row_check)
    assert report.trainable, report.reason
    assert [i.key for i in direct.list("shards/")] == [i.key for i in undisturbed.list("shards/")]
    direct.close()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault("error", code="AccessDenied", status=403, times=99), "access denied: .*grant s3:GetObject"),
        (Fault("error", code="ExpiredToken", status=400, times=99), "session token has expired: renew"),
        (Fault("error", code="RequestTimeTooSkewed", status=403, times=99), r"clock.*set the clock \(NTP\)"),
        (
            Fault("error", code="PermanentRedirect", status=301, times=99),
            "another region or at another endpoint",
        ),
        (Fault("error", code="AuthorizationHeaderMalformed", status=400, times=99), r"set store\.region"),
        (
            Fault("error", code="QuotaExceeded", status=403, times=99),
            "quota is used up: raise it or free space",
        ),
        (Fault("error", code="XMinioStorageFull", status=507, times=99), "disk is full: free space"),
        (
            Fault("error", code="EntityTooLarge", status=400, times=99),
            r"larger than this store takes: lower batch\.rows",
        ),
        (
            Fault("error", code="SomethingNew", status=400, times=99),
            r"refuses the call \(SomethingNew, HTTP 400\)",
        ),
    ],
    ids=lambda value: value.code if isinstance(value, Fault) else "",
)
def test_faults_that_stop(through: Any, fault: Fault, message: str) -> None:
    """What only a person can cure stops at once, with what to do."""
    store, proxy = through(Fault(fault.kind, "PUT", "", 99, fault.code, fault.status))
    with pytest.raises(SurroundingsError, match=message):
        store.put("k.json", b"1")
    assert sum(line.startswith("PUT") for line in proxy.seen) == 1


def test_a_store_that_keeps_failing(through: Any) -> None:
    """After the deadline the error says how often and for how long, and that it may be tried again."""
    store, proxy = through(Fault("error", code="InternalError", status=500, times=999), deadline=1.0)
    with pytest.raises(
        LaterError, match=r"put k\.json: the store failed \(InternalError\); \d+ attempts in \d+ s, limit 1 s"
    ):
        store.put("k.json", b"1")
    assert len(proxy.seen) >= 3


def test_expired_credentials_are_read_again_once(
    through: Any, monkeypatch: pytest.MonkeyPatch, seaweed: Seaweed, s3_spec: StoreSpec
) -> None:
    """Credentials of the AWS chain that expired are fetched again: a new login in the meantime is enough."""
    for name, value in seaweed.environment().items():
        if "ENDPOINT" not in name:
            monkeypatch.setenv(name, value)
    _, proxy = through(Fault("error", code="ExpiredToken", status=400, times=1))
    store = open_store(s3_spec.model_copy(update={"endpoint_url": proxy.url}), "job")
    assert store.put("k.json", b"1")
    store.close()


def test_clock_skew(through: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is 20 minutes off is named as such by the real server."""
    import botocore.auth

    late = datetime.datetime.now(datetime.UTC).replace(tzinfo=None) - datetime.timedelta(minutes=20)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *_, **__: late)
    store, _ = through()
    with pytest.raises(SurroundingsError, match=r"clock and the store's are too far apart: set the clock"):
        store.put("k.json", b"1")


def test_bucket_removed(seaweed: Seaweed, s3_spec: StoreSpec) -> None:
    """A bucket that vanishes during the job stops it with that name."""
    keys = seaweed.credentials
    client = boto3.client("s3", endpoint_url=seaweed.http_url, region_name="us-east-1", **keys)
    client.create_bucket(Bucket="short-lived")
    store = open_store(s3_spec.model_copy(update={"uri": "s3://short-lived/x"}), "", keys)
    store.put("k.json", b"1")
    store.delete("k.json")
    client.delete_bucket(Bucket="short-lived")
    with pytest.raises(SurroundingsError, match=r"s3://short-lived/x .* bucket does not exist"):
        store.put("k.json", b"1")
    client.close()
    store.close()


@pytest.mark.process
def test_server_killed_and_restarted(tmp_path: Path, prompts: Callable[..., Path], kit: Any) -> None:
    """The S3 server is killed twice while batches are committed: the calls wait for it, nothing is lost."""
    folder = tmp_path / "weed"
    server = start_seaweed(folder)
    spec = kit.job_spec(
        tmp_path,
        str(prompts(rows=60)),
        batch={"rows": 3},
        store={"uri": f"s3://{server.bucket}/x", "endpoint_url": server.endpoint_url, "region": "us-east-1"},
    )
    store = open_store(spec.store, spec.job_id, server.credentials)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            kit.run_job(store, spec)
        except BaseException as error:
            failed.append(error)

    worker = threading.Thread(target=run)
    worker.start()
    for _ in range(2):
        worker.join(0.4)
        server.kill()
        server = start_seaweed(folder, port=server.port)
    worker.join(60)
    assert failed == []
    report = audit(store, kit.row_check)
    assert report.trainable, report.reason
    assert report.rows["total"] == 60
    store.close()
    server.stop()


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Objects above 6 MB go in parts of 5 MB, the least that S3 takes; returns a large object."""
    monkeypatch.setattr(s3_parts, "PART_BYTES", 5 * 2**20)
    monkeypatch.setattr("tasks.store.s3.LARGEST_SINGLE_PUT", 6 * 2**20)
    return bytes(range(256)) * (12 * 2**12) + b"tail"


@pytest.mark.parametrize(
    "faults",
    [
        [],
        [Fault("reset_upload", "PUT", "partNumber=2", 2)],
        [Fault("lose_response", "PUT", "partNumber", 3)],
        [Fault("corrupt_upload", "PUT", "partNumber=3", 1)],
        [Fault("error", "PUT", "partNumber", 3, "SlowDown", 503)],
        [Fault("slow_upload", "PUT", "partNumber=2", 1, "3.0")],
        [Fault("lose_response", "POST", "uploadId", 1)],
        [Fault("lose_response", "POST", "uploads", 1)],
    ],
    ids=["none", "reset", "lost", "corrupt", "slow-down", "slow-upload", "complete-lost", "create-lost"],
)
def test_large_objects_go_in_parts(through: Any, small_parts: bytes, faults: list[Fault]) -> None:
    """A large object arrives whole whatever happens to its parts, and carries its digest."""
    store, proxy = through(*[Fault(f.kind, f.method, f.path, f.times, f.code, f.status) for f in faults])
    assert store.put("shards/large.bin", small_parts, create_only=True)
    assert not store.put("shards/large.bin", small_parts, create_only=True)
    assert store.get("shards/large.bin") == small_parts
    assert any("partNumber=3" in line for line in proxy.seen)
    left = 1 if faults and faults[0].path == "uploads" else 0  # a Create whose answer was lost leaves one
    assert store.abort_leftovers(0.0) == left
    assert store.abort_leftovers(0.0) == 0


@pytest.mark.process
def test_server_killed_in_the_middle_of_a_part(tmp_path: Path, small_parts: bytes) -> None:
    """The S3 server dies while half of a part is there and comes back: the upload goes on with that part."""
    servers = [start_seaweed(tmp_path / "weed")]

    def restart() -> None:
        servers[0].kill()
        servers.append(start_seaweed(tmp_path / "weed", port=servers[0].port))

    with FaultProxy(servers[0].port, Fault("interrupt", "PUT", "partNumber=2")) as proxy:
        proxy.interrupt = restart
        spec = StoreSpec(uri=f"s3://{servers[0].bucket}/x", endpoint_url=proxy.url, region="us-east-1")
        store = open_store(spec, "", servers[0].credentials)
        assert store.put("shards/large.bin", small_parts, create_only=True)
        assert store.get("shards/large.bin") == small_parts
        assert store.abort_leftovers(0.0) == 0
        assert proxy.broken == 1
        store.close()
    servers[-1].stop()


async def test_uploads_do_not_block_the_event_loop(through: Any) -> None:
    """While an upload waits for its answer, the run's event loop goes on with rows."""
    store, _ = through(Fault("slow", "PUT", "shards/", 1, "0.8"))
    ticks = 0
    with ThreadPoolExecutor(1) as pool:
        run: Any = SimpleNamespace(pool=pool)
        upload = asyncio.ensure_future(Run.in_thread(run, store.put, "shards/a.bin", bytes(2**20)))
        while not upload.done():
            await asyncio.sleep(0.01)
            ticks += 1
        assert await upload
    assert ticks > 10


def test_a_failed_upload_is_taken_back(through: Any, small_parts: bytes) -> None:
    """When a part cannot be sent the upload is aborted and the object stays absent."""
    store, _ = through(Fault("error", "PUT", "partNumber=2", 999, "InternalError", 500), deadline=1.0)
    with pytest.raises(LaterError, match="part 2 of"):
        store.put("shards/large.bin", small_parts, create_only=True)
    assert store.head("shards/large.bin") is None
    assert store.abort_leftovers(0.0) == 0


def test_young_uploads_are_left_alone(through: Any, small_parts: bytes) -> None:
    """Only leftovers that are old enough are aborted: a young one may be at work."""
    store, _ = through(Fault("lose_response", "POST", "uploads", 1))
    store.put("shards/large.bin", small_parts)
    assert store.abort_leftovers(3600.0) == 0
    assert store.abort_leftovers(0.0) == 1


def test_a_get_that_stays_corrupt(through: Any) -> None:
    """Bytes that never match their digest are refused, not handed out."""
    store, _ = through(Fault("corrupt_response", "GET", times=99))
    store.put("k.bin", b"right" * 100)
    with pytest.raises(DataError, match="expected sha256"):
        store.get("k.bin")


def test_a_later_writer_in_between_is_no_damage(
    seaweed: Seaweed, s3_spec: StoreSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two publishers put one key at once: both end well, and what lies there is one of theirs, whole."""
    store, other = (open_store(s3_spec, "job", seaweed.credentials) for _ in range(2))
    head = type(store).head
    others = iter([b"theirs, and longer"])

    def late(self: ObjectStore, key: str) -> ObjectInfo | None:
        if self is store and (theirs := next(others, None)) is not None:
            other.put(key, theirs)
        return head(self, key)

    monkeypatch.setattr(type(store), "head", late)
    assert store.put("dataset.json", b"ours")
    assert store.get("dataset.json") == b"theirs, and longer"


def test_an_upload_that_somebody_aborts_is_told(
    seaweed: Seaweed, s3_spec: StoreSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lifecycle rule takes the parts away: a named error that a retry may cure, no TypeError."""
    store = open_store(s3_spec, "job", seaweed.credentials)
    client = store._client  # type: ignore[attr-defined]
    upload_part = client.upload_part

    def aborted(**arguments: Any) -> Any:
        client.abort_multipart_upload(**{name: arguments[name] for name in ("Bucket", "Key", "UploadId")})
        return upload_part(**arguments)

    monkeypatch.setattr(client, "upload_part", aborted)
    new = store.create("shards/x.bin")
    new.write(bytes(33 << 20))
    with pytest.raises(LaterError, match="was aborted meanwhile"):
        new.publish()
