"""The start-up probe chooses how a store is used, from what the server really does."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from deployments.local.seaweed import Seaweed
from tasks.audit.reread import audit
from tasks.errors import SurroundingsError
from tasks.job.spec import StoreSpec
from tasks.ledger.ledger import Ledger
from tasks.prompts.opening import open_sources
from tasks.prompts.plan_batches import extend_plan
from tasks.store.contract import canonical, sha256_hex
from tasks.store.opening import open_store
from tasks.store.probe import prepare_store
from tasks.store.s3 import S3Store
from tasks.store.s3_client import Modes
from tests.support.fault_proxy import Fault, FaultProxy
from tests.support.small_jobs import CEPH, s3_access


def test_folder(tmp_path: Path) -> None:
    """A local folder keeps every promise, and the probe leaves nothing behind."""
    store, probe = prepare_store(StoreSpec(uri=str(tmp_path / "store")), "job")
    assert probe.usable
    assert all(check.passed for check in probe.checks)
    assert list(store.list("")) == []


def test_seaweed_over_http(seaweed: Seaweed, s3_spec: StoreSpec) -> None:
    """SeaweedFS over http: default checksums, conditional puts, digests checked, closed to strangers."""
    store, probe = prepare_store(s3_spec, "job", seaweed.credentials)
    assert {check.name: check.passed for check in probe.checks} == dict.fromkeys(
        [check.name for check in probe.checks], True
    )
    assert probe.as_json()["modes"] == {
        "checksums": "when_supported",
        "commit": "conditional",
        "read_back": False,
    }
    assert list(store.list("")) == []
    store.close()


def test_seaweed_over_https(seaweed: Seaweed, s3_spec: StoreSpec, certificate: tuple[Path, Path]) -> None:
    """Over TLS SeaweedFS keeps `aws-chunked` as content encoding: the probe sees it and sends no trailers."""
    spec = s3_spec.model_copy(update={"endpoint_url": seaweed.endpoint_url})
    store, probe = prepare_store(spec, "job", seaweed.credentials, ca_bundle=str(certificate[0]))
    checks = {check.name: check for check in probe.checks}
    assert "aws-chunked" in checks["checksums by default"].got
    assert probe.as_json()["modes"] == {
        "checksums": "when_required",
        "commit": "conditional",
        "read_back": False,
    }
    assert probe.usable
    store.close()


@pytest.mark.parametrize("lane", CEPH or ["none"])
def test_ceph(request: pytest.FixtureRequest, lane: str) -> None:
    """RGW 16.2 takes default checksums over http, refuses trailers over TLS, and honours conditional puts."""
    if lane == "none":
        return  # python -m tests.support.ceph turns it on
    spec, keys, authority = s3_access(request, lane)
    store, probe = prepare_store(spec, "job", keys, ca_bundle=authority)
    checksums = "when_required" if lane.endswith("https") else "when_supported"
    assert probe.as_json()["modes"] == {"checksums": checksums, "commit": "conditional", "read_back": False}
    store.close()


@pytest.mark.parametrize(
    ("before", "lost"),
    [pytest.param(3, 1, id="the first of two"), pytest.param(5, 8, id="those of all eight writers")],
)
def test_a_put_whose_answer_was_lost_is_its_own(
    seaweed: Seaweed, s3_spec: StoreSpec, before: int, lost: int
) -> None:
    """It is made again and finds its own bytes there: no other writer's."""
    faults = [Fault("pass", path="_probe/", times=before), Fault("lose_response", path="_probe/", times=lost)]
    with FaultProxy(seaweed.port, *faults) as proxy:
        spec = s3_spec.model_copy(update={"endpoint_url": proxy.url})
        store, probe = prepare_store(spec, "job", seaweed.credentials)
        assert probe.as_json()["modes"]["commit"] == "conditional", probe.as_json()
        assert proxy.broken == before + lost
        store.close()


def test_a_setting_beats_the_probe(seaweed: Seaweed, s3_spec: StoreSpec) -> None:
    """store.checksums other than auto is taken as it is."""
    spec = s3_spec.model_copy(update={"checksums": "when_required"})
    store, probe = prepare_store(spec, "job", seaweed.credentials)
    assert probe.modes.checksums == "when_required"
    store.close()


@pytest.mark.parametrize(
    ("faults", "modes"),
    [
        (
            [Fault("error", "PUT", "", 1, "MissingContentLength", 411)],
            ("when_required", "conditional", False),
        ),
    ],
    ids=["trailers-refused"],
)
def test_old_dialects(
    seaweed: Seaweed, s3_spec: StoreSpec, faults: list[Fault], modes: tuple[str, str, bool]
) -> None:
    """A server that refuses the default checksums is used without them."""
    with FaultProxy(seaweed.port, *faults) as proxy:
        proxy.faults.insert(0, Fault("", "PUT", "", 1))  # the round trip's put passes
        store, probe = prepare_store(
            s3_spec.model_copy(update={"endpoint_url": proxy.url}), "job", seaweed.credentials
        )
        assert tuple(probe.as_json()["modes"].values()) == modes
        store.close()


def test_no_conditional_puts(
    seaweed: Seaweed, s3_spec: StoreSpec, tmp_path: Path, prompts: Callable[..., Path], kit: Any
) -> None:
    """A server without conditional puts (501, as Swift answers) is used by one writer; the job ends whole."""
    with StripConditions(seaweed.port) as proxy:
        spec = s3_spec.model_copy(update={"endpoint_url": proxy.url})
        store, probe = prepare_store(spec, "job", seaweed.credentials)
        assert probe.as_json()["modes"]["commit"] == "single_writer"
        assert isinstance(store, S3Store)
        assert not store.modes.conditional
        job = kit.job_spec(tmp_path, str(prompts()))
        kit.run_job(store, job)
        before = [(info.key, info.modified) for info in store.list("receipts/")]
        kit.run_job(store, job)
        assert [(info.key, info.modified) for info in store.list("receipts/")] == before
        report = audit(store, kit.row_check)
        assert report.trainable, report.reason
        store.close()


def test_two_writers_without_conditions(
    seaweed: Seaweed, s3_spec: StoreSpec, tmp_path: Path, prompts: Callable[..., Path], kit: Any
) -> None:
    """Two workers commit the same batches at once to such a server: one whole receipt a batch stands."""
    spec = kit.job_spec(tmp_path, str(prompts()), batch={"rows": 5})
    barrier = threading.Barrier(2)

    def work(number: int) -> None:
        store = open_store(s3_spec, "job", seaweed.credentials)
        assert isinstance(store, S3Store)
        store.modes = Modes(conditional=False)
        barrier.wait(30)
        ledger = Ledger(store, spec.job_id)
        ledger.open_job(spec, kit.resolved)
        sources = open_sources(spec.prompts)
        plan = extend_plan(ledger, sources, spec, sha256_hex(canonical(kit.resolved)))
        for batch in plan.batches:
            rows = [kit.completion_of(record, number) for record in sources.read(batch)]
            ledger.commit(kit.receipt_of(ledger, batch, kit.checked_batch(batch.index, rows)))
        store.close()

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(work, number) for number in range(2)]:
            done.result()
    store = open_store(s3_spec, "job", seaweed.credentials)
    report = audit(store, kit.row_check)
    assert report.trainable, report.reason
    assert report.batches == {"planned": 5, "committed": 5}
    assert report.rows["total"] == 25
    store.close()


class StripConditions(FaultProxy):
    """Answers 501 to every conditional put."""

    def _one(self, client: Any, head: bytes) -> None:
        if b"if-none-match" in head.lower():
            self.faults = [Fault("error", "PUT", "", 1, "NotImplemented", 501)]
        super()._one(client, head)


def test_ignored_conditions(seaweed: Seaweed, s3_spec: StoreSpec) -> None:
    """A server that overwrites despite the condition is found out, and used by one writer."""
    with IgnoreConditions(seaweed.port) as proxy:
        proxy.keys = seaweed.credentials
        spec = s3_spec.model_copy(update={"endpoint_url": proxy.url})
        store, probe = prepare_store(spec, "job", seaweed.credentials)
        checks = {check.name: check for check in probe.checks}
        assert checks["create only if absent"].got == "True, True, b'second'"
        assert not probe.modes.conditional
        assert store.put("k.json", b"1", create_only=True)
        assert not store.put("k.json", b"2", create_only=True)
        assert store.get("k.json") == b"1"
        store.close()


class IgnoreConditions(FaultProxy):
    """Deletes the object before every conditional put, so that the put overwrites as if unconditional."""

    keys: dict[str, str]

    def _upstream(self, request: bytes) -> bytes:
        head, _, body = request.partition(b"\r\n\r\n")
        if b"if-none-match" in head.lower():
            path = head.split()[1]
            super()._upstream(resigned(b"DELETE", path, head, self))
        return super()._upstream(head + b"\r\n\r\n" + body)


def resigned(method: bytes, path: bytes, head: bytes, proxy: "IgnoreConditions") -> bytes:
    """Return a signed request that deletes the object first, so that the conditional put overwrites it."""
    del head
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    keys = proxy.keys
    request = AWSRequest(method.decode(), f"http://127.0.0.1:{proxy.port}{path.decode()}")
    S3SigV4Auth(Credentials(*keys.values()), "s3", "us-east-1").add_auth(request)
    lines = [
        f"{method.decode()} {path.decode()} HTTP/1.1",
        f"Host: 127.0.0.1:{proxy.port}",
        "Connection: close",
    ]
    lines += [f"{name}: {value}" for name, value in request.headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def test_unusable_stores(seaweed: Seaweed, s3_spec: StoreSpec) -> None:
    """A bucket that is not there or keys that are wrong stop the probe with what to do."""
    with pytest.raises(SurroundingsError, match="bucket does not exist"):
        prepare_store(s3_spec.model_copy(update={"uri": "s3://no-such-bucket"}), "", seaweed.credentials)
    keys = seaweed.credentials | {"aws_secret_access_key": "wrong"}
    with pytest.raises(SurroundingsError, match="secret key does not belong"):
        prepare_store(s3_spec, "", keys)
