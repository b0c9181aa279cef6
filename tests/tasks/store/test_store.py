"""One contract, two stores: a folder, and S3 as a real SeaweedFS speaks it."""

import contextlib
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from deployments.local.seaweed import Seaweed
from tasks.errors import DataError, JobError, SurroundingsError
from tasks.job.spec import StoreSpec
from tasks.store.contract import MissingError, ObjectStore, digest_of, put_content, sha256_hex
from tasks.store.opening import find_job, open_store
from tasks.store.s3_client import make_client


def test_what_was_put_is_read_back(store: ObjectStore) -> None:
    """Bytes come back as they were, empty ones too, and head knows their size."""
    for key, data in (("a.json", b"{}"), ("deep/er/b.bin", bytes(range(256)) * 300), ("empty.bin", b"")):
        assert store.put(key, data)
        assert store.get(key) == data
        info = store.head(key)
        assert info is not None
        assert info.size == len(data)
        assert info.sha256 in ("", sha256_hex(data))
        assert info.modified > 1.6e9


def test_a_plain_put_replaces(store: ObjectStore) -> None:
    """Derived objects such as dataset.json may be rewritten."""
    assert store.put("dataset.json", b"1")
    assert store.put("dataset.json", b"22")
    assert store.get("dataset.json") == b"22"


def test_create_only_never_replaces(store: ObjectStore) -> None:
    """The second writer is told, and the first one's bytes stay."""
    assert store.put("receipts/000000.g0.json", b"first", create_only=True)
    assert not store.put("receipts/000000.g0.json", b"second", create_only=True)
    assert store.get("receipts/000000.g0.json") == b"first"


def test_one_of_many_writers_wins(store: ObjectStore) -> None:
    """Eight threads create one key at once: one is told that it did, and its bytes are there."""
    won: list[bytes] = []
    barrier = threading.Barrier(8)

    def create(number: int) -> None:
        data = b"%d" % number
        barrier.wait()
        if store.put("race.json", data, create_only=True):
            won.append(data)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [store.get("race.json")]


def test_absent_objects(store: ObjectStore) -> None:
    """Head says None, get names the object, delete does not mind."""
    assert store.head("no/such.json") is None
    with pytest.raises(MissingError, match=r"no/such\.json"):
        store.get("no/such.json")
    store.delete("no/such.json")


def test_listing_is_in_key_order(store: ObjectStore) -> None:
    """Keys come whole and in order below any prefix, also one that ends inside a name."""
    keys = ["a.json", "a/1.json", "a/2.json", "a/b/3.json", "ab/4.json", "b.json"]
    for key in reversed(keys):
        store.put(key, b"x")
    assert sorted(info.key for info in store.list("")) == keys  # SeaweedFS lists folder a before a.json
    assert [info.key for info in store.list("a/")] == keys[1:4]
    assert [info.key for info in store.list("a/b")] == ["a/b/3.json"]
    assert [info.key for info in store.list("nothing/")] == []
    assert list(store.children()) == ["a", "ab"]
    store.delete("a/2.json")
    assert [info.key for info in store.list("a/")] == ["a/1.json", "a/b/3.json"]


def test_more_than_one_page_is_listed(store: ObjectStore) -> None:
    """1,005 objects are more than one answer of S3 holds."""
    count = 1005
    threads = [
        threading.Thread(target=lambda k=k: [store.put(f"n/{i:05d}", b"") for i in range(k, count, 8)])
        for k in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [info.key for info in store.list("n/")] == [f"n/{i:05d}" for i in range(count)]


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "a/./b", "a b", "a\\b", "ä", "x" * 256])
def test_odd_keys_are_refused(store: ObjectStore, key: str) -> None:
    """Keys that a store could change or that leave the prefix are never sent."""
    for call in (lambda: store.put(key, b""), lambda: store.get(key), lambda: store.head(key)):
        with pytest.raises(ValueError, match="segment"):
            call()


def test_content_is_put_once_and_repaired(store: ObjectStore) -> None:
    """Content under its own digest may be put again; a wrong object under that name is replaced."""
    key = f"shards/{sha256_hex(b'right')}.parquet"
    put_content(store, key, b"right")
    put_content(store, key, b"right")
    store.put(key, b"torn")
    put_content(store, key, b"right")
    assert store.get(key) == b"right"


def test_store_resolves_to_its_job(tmp_path: Path, seaweed: Seaweed, s3_spec: StoreSpec) -> None:
    """STORE is the prefix with job.json, or the only job right below it; otherwise the message lists them."""
    for spec, keys in ((StoreSpec(uri=str(tmp_path / "s")), None), (s3_spec, seaweed.credentials)):
        with pytest.raises(JobError, match="found none"):
            find_job(spec, credentials=keys)
        with_job(spec, keys, "one")
        found = find_job(spec, credentials=keys)
        assert found.uri.endswith("/one")
        assert find_job(spec.model_copy(update={"uri": f"{spec.uri}/one"}), credentials=keys).uri == found.uri
        with_job(spec, keys, "two")
        with pytest.raises(JobError, match="2 jobs; name one: one, two"):
            find_job(spec, credentials=keys)


def with_job(spec: StoreSpec, keys: dict[str, str] | None, name: str) -> None:
    """Put a job.json below a prefix."""
    store = open_store(spec, name, keys)
    store.put("job.json", b"{}")
    store.close()


@pytest.mark.parametrize("uri", ["s3://", "s3://UPPER/x", "s3://bucket/x?y=1", "gs://b/x"])
def test_bad_addresses_are_refused(uri: str) -> None:
    """The message names store.uri and what was expected."""
    with pytest.raises(JobError, match=r"store\.uri: expected"):
        open_store(StoreSpec(uri=uri))


def s3(seaweed: Seaweed, **changes: str) -> tuple[StoreSpec, dict[str, str]]:
    """Return a store section and keys, some of them wrong."""
    keys = dict(seaweed.credentials)
    keys |= {name: value for name, value in changes.items() if name.startswith("aws_")}
    spec = StoreSpec(
        uri=changes.get("uri", f"s3://{seaweed.bucket}/refused"),
        endpoint_url=changes.get("endpoint_url", seaweed.http_url),
        region="us-east-1",
        deadline_seconds=1.0,
    )
    return spec, keys


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"uri": "s3://no-such-bucket/x"}, "bucket does not exist: create it"),
        ({"aws_secret_access_key": "wrong"}, "secret key does not belong"),
        ({"aws_access_key_id": "nobody"}, "access key is not known"),
        ({"endpoint_url": "http://127.0.0.1:9"}, r"cannot be reached: is it up.*attempts in"),
        ({"endpoint_url": "https://127.0.0.1:{port}"}, "TLS certificate is not trusted"),
    ],
    ids=["bucket", "secret", "key", "endpoint", "tls"],
)
def test_refusals_say_what_to_do(seaweed: Seaweed, changes: dict[str, str], message: str) -> None:
    """Each refusal is a SurroundingsError with the place and the cure, and never shows a secret."""
    changes = {name: value.format(port=seaweed.port) for name, value in changes.items()}
    spec, keys = s3(seaweed, **changes)
    store = open_store(spec, "", keys)
    calls: list[Callable[[], object]] = [lambda: store.put("k.json", b"1"), lambda: list(store.list(""))]
    for call in calls:
        with pytest.raises(SurroundingsError, match=message) as caught:
            call()
        assert keys["aws_secret_access_key"] not in str(caught.value)
        assert caught.value.exit_status == 5
    assert keys["aws_secret_access_key"] not in repr(store)
    store.close()


def test_no_credentials_is_its_own_error(
    seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without keys, profile or role the message names the ways to give them."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    store = open_store(s3(seaweed)[0])
    with pytest.raises(SurroundingsError, match="no credentials: set AWS_ACCESS_KEY_ID"):
        store.put("k.json", b"1")
    store.close()


def test_the_aws_chain_finds_the_embedded_server(
    seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch, certificate: tuple[Path, Path]
) -> None:
    """Keys, endpoint, region and certificate authority may all come from the environment."""
    for name, value in seaweed.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate[0]))
    store = open_store(StoreSpec(uri=f"s3://{seaweed.bucket}/chain"))
    assert store.put("k.json", b"1")
    store.close()


def test_a_folder_leaves_no_half_object(tmp_path: Path) -> None:
    """What a killed writer left under a temporary name is not listed and not in the way."""
    store = open_store(StoreSpec(uri=str(tmp_path)))
    store.put("shards/a.bin", b"1")
    (tmp_path / "shards" / ".tmp-dead").write_bytes(b"half")
    assert [info.key for info in store.list("")] == ["shards/a.bin"]
    assert store.abort_leftovers(3600.0) == 0
    assert store.abort_leftovers(0.0) == 1
    assert [path.name for path in (tmp_path / "shards").iterdir()] == ["a.bin"]


@pytest.mark.process
def test_a_full_disk_says_so(tmp_path: Path) -> None:
    """When the disk takes no more the error says what to do, and no half object is left."""
    child = f"""
        import resource, signal
        from tasks.errors import SurroundingsError
        from tasks.job.spec import StoreSpec
        from tasks.store.opening import open_store
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        store = open_store(StoreSpec(uri={str(tmp_path)!r}))
        store.put("small.bin", b"x")
        try:
            store.put("shards/large.bin", bytes(20_000), create_only=True)
        except SurroundingsError as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(child)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "shards/large.bin: File too large (EFBIG): the file size limit was reached" in done.stdout
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["small.bin"]


def test_a_read_only_folder_says_so(tmp_path: Path) -> None:
    """A path below a file cannot be a folder: the message says to choose another."""
    (tmp_path / "file").write_text("")
    store = open_store(StoreSpec(uri=str(tmp_path / "file" / "store")))
    with pytest.raises(SurroundingsError, match="choose another folder"):
        store.put("a.json", b"1")


def test_a_changed_object_is_refused(seaweed: Seaweed, s3_spec: StoreSpec) -> None:
    """Bytes that contradict the digest stored with them are not handed out."""
    store = open_store(s3_spec, "", seaweed.credentials)
    store.put("k.bin", b"right")
    store._client.put_object(  # type: ignore[attr-defined]
        Bucket=seaweed.bucket,
        Key=f"{s3_spec.uri.split('/', 3)[3]}/k.bin",
        Body=b"wrong",
        Metadata={"sha256": "0" * 64},
    )
    with pytest.raises(DataError, match="expected sha256 0000"):
        store.get("k.bin")
    store.close()


@pytest.mark.parametrize("megabytes", [0, 1, 70], ids=["empty", "one-put", "parts"])
def test_an_object_is_written_piece_by_piece(store: ObjectStore, megabytes: int) -> None:
    """It is not there until it is published, then whole with its digest; given up, the old one stays."""
    store.put("big.bin", b"old")
    piece = bytes(range(256)) * 4096
    new = store.create("big.bin")
    for _ in range(megabytes):
        new.write(piece)
    assert store.get("big.bin") == b"old"
    given_up = store.create("big.bin")
    given_up.write(b"half")
    given_up.discard()
    sha256 = new.publish()
    assert sha256 == sha256_hex(piece * megabytes)
    assert digest_of(store, "big.bin") == (megabytes * 2**20, sha256)
    assert digest_of(store, "big.bin", stored=False) == (megabytes * 2**20, sha256)
    assert digest_of(store, "none.bin") is None
    assert [info.key for info in store.list("")] == ["big.bin"]
    assert store.abort_leftovers(0.0) == 0


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("report.html", "text/html; charset=utf-8"),
        ("README.md", "text/markdown; charset=utf-8"),
        ("dataset.json", "application/json"),
        ("shards/a.parquet", "application/octet-stream"),
    ],
)
def test_documents_say_what_they_are(seaweed: Seaweed, s3_spec: StoreSpec, key: str, expected: str) -> None:
    """A browser shows the published page instead of offering it for download."""
    store = open_store(s3_spec, "", seaweed.credentials)
    store.put(key, b"x")
    with contextlib.closing(make_client(s3_spec, seaweed.credentials, None)) as client:
        path = f"{s3_spec.uri.split('/', 3)[3]}/{key}"
        assert client.head_object(Bucket=seaweed.bucket, Key=path)["ContentType"] == expected
    store.close()
