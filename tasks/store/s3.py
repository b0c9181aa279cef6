"""S3 as an object store: single puts with a digest that every dialect checks, retried to a deadline.

- botocore makes one attempt; the loop here is the only retry layer (botocore's own token bucket gives up
  after three seconds of outage however many attempts it is allowed).
- `Content-MD5` is the one guard that AWS, MinIO, Ceph RGW, Swift and SeaweedFS all honour, so every put has
  it; `x-amz-meta-sha256` stays with the object. With `when_required` no trailer is sent, which old dialects
  refuse.
- Transfers never go through s3transfer: its CRT client drops `endpoint_url` and sends data to AWS.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

import attrs
from botocore.exceptions import ClientError

from tasks.errors import DataError, SurroundingsError
from tasks.job.spec import StoreSpec
from tasks.store.commands import typed_store
from tasks.store.contract import (
    MissingError,
    ObjectInfo,
    check_key,
    digest_of,
    parse_s3_uri,
    sha256_hex,
)
from tasks.store.new_object import NewObject
from tasks.store.s3_client import Modes, make_client, put_arguments, server_time
from tasks.store.s3_parts import LARGEST_SINGLE_PUT, PART_BYTES, Content, leftover_uploads, put_parts
from tasks.store.s3_retry import Deadline
from tasks.store.s3_staged import staged_object

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client


class S3Store:
    """Objects below `s3://bucket/prefix`. One client, made once, used from any thread."""

    def __init__(
        self,
        client: "S3Client",
        bucket: str,
        prefix: str,
        deadline_seconds: float,
        renew: "Callable[[], S3Client] | None" = None,
        spec: StoreSpec | None = None,
    ) -> None:
        self._spec = spec
        self._client = client
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._make_client = renew
        self._deadline = Deadline(deadline_seconds, self._where(), self._renew)
        self.modes = Modes()
        """What this server honours; the cautious reading until `probe_store` has asked it."""

    @classmethod
    def open(
        cls,
        spec: StoreSpec,
        prefix: str,
        credentials: Mapping[str, str] | None = None,
        ca_bundle: str | None = None,
    ) -> Self:
        """Build the client from the job's store section; see `open_store`."""
        bucket, base = parse_s3_uri(spec.uri)
        path = "/".join(part for part in (base, prefix) if part)
        make = functools.partial(make_client, spec, credentials, ca_bundle)
        return cls(make(), bucket, path, spec.deadline_seconds, None if credentials else make, spec)

    def _renew(self) -> bool:
        """Read the AWS chain again, where it was used: a person may have logged in meanwhile."""
        if self._make_client is None:
            return False
        self._client = self._make_client()
        return True

    def __repr__(self) -> str:
        return f"S3Store({self._where()!r})"

    @property
    def uri(self) -> str:
        """`s3://bucket/prefix`."""
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    @property
    def typed(self) -> str:
        """See `ObjectStore.typed`."""
        return typed_store(self.uri, self._spec)

    def _where(self) -> str:
        return f"{self.uri} at {self._client.meta.endpoint_url}"

    def put(self, key: str, data: bytes, *, create_only: bool = False) -> bool:
        """See `ObjectStore.put`; afterwards HEAD must show the same size and digest.

        Where the server has no conditional puts, `create_only` looks first and reads back afterwards: of two
        writers within one round trip the later one stands, which is why receipts only name content by digest.
        """
        path = self._prefix + check_key(key)
        sha256 = sha256_hex(data)
        condition: dict[str, Any] = {}
        if create_only and self.modes.conditional and len(data) <= LARGEST_SINGLE_PUT:
            condition = {"IfNoneMatch": "*"}
        elif create_only and self.head(key) is not None:
            return False
        if len(data) > LARGEST_SINGLE_PUT:
            put_parts(self._deadline, lambda: self._client, self._bucket, path, Content.of(data))
        else:
            arguments = put_arguments(self._bucket, path, data) | condition
            answer = self._deadline.call(f"put {key}", lambda: self._client.put_object(**arguments))
            if answer.kind == "exists":
                return False
            if answer.kind == "unsupported" and condition:
                self.modes = attrs.evolve(self.modes, conditional=False)
                return self.put(key, data, create_only=True)
            self._expect(answer.kind, f"put {key}")
        alone = bool(condition) or not create_only
        return self._check_put(key, data, sha256, alone=alone, replaces=not create_only)

    def _check_put(self, key: str, data: bytes, sha256: str, *, alone: bool, replaces: bool) -> bool:
        info = self.head(key)
        if replaces and info is not None and info.sha256 not in ("", sha256):
            return True  # somebody else put theirs over ours since: both stand whole, the later one last
        if info is None or info.size != len(data) or info.sha256 not in ("", sha256):
            if info is not None and not alone:
                return False  # another writer came within this round trip; the caller reads what stands
            raise DataError(
                f"{self._where()}, {key}: expected {len(data)} bytes with sha256 {sha256} after the put, "
                f"got {info}"
            )
        if self.modes.read_back and self.get(key) != data:
            raise DataError(f"{self._where()}, {key}: expected the bytes that were put, got others back")
        return True

    def create(self, key: str) -> NewObject:
        """See `ObjectStore.create`."""
        check_key(key)
        return staged_object(lambda content: self._put_content(key, content))

    def _put_content(self, key: str, content: Content) -> None:
        """Put what is not in memory; afterwards the store must show the same size and digest."""
        if content.size <= PART_BYTES:
            self.put(key, content.read(0, content.size))
            return
        put_parts(self._deadline, lambda: self._client, self._bucket, self._prefix + key, content)
        found = digest_of(self, key, stored=not self.modes.read_back)
        if found != (content.size, content.sha256):
            raise DataError(
                f"{self._where()}, {key}: expected {content.size} bytes with sha256 {content.sha256} after "
                f"the put, got {found}"
            )

    def get(self, key: str) -> bytes:
        """See `ObjectStore.get`; bytes that contradict the stored digest are fetched again, then refused."""
        path = self._prefix + check_key(key)
        found: tuple[bytes, str] = (b"", "")
        for _ in range(3):
            answer = self._deadline.call(f"get {key}", lambda: self._read(path))
            if answer.kind == "missing":
                raise MissingError(f"{self._where()}, {key}: expected an object, found none")
            self._expect(answer.kind, f"get {key}")
            found = answer.value
            if found[1] in ("", sha256_hex(found[0])):
                return found[0]
        raise DataError(
            f"{self._where()}, {key}: expected sha256 {found[1]} (stored with it), got {sha256_hex(found[0])}"
        )

    def _read(self, path: str, **wanted: Any) -> tuple[bytes, str]:
        response = self._client.get_object(Bucket=self._bucket, Key=path, **wanted)
        with contextlib.closing(response["Body"]) as body:  # the body's own `with` hands out the bare socket
            return body.read(), response.get("Metadata", {}).get("sha256", "")

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        """See `ObjectStore.get_range`."""
        path = self._prefix + check_key(key)
        wanted = {"Range": f"bytes={start}-{stop - 1}"}
        answer = self._deadline.call(f"get {key}", lambda: self._read(path, **wanted))
        if answer.kind == "missing":
            raise MissingError(f"{self._where()}, {key}: expected an object, found none")
        self._expect(answer.kind, f"get {key}")
        data: bytes = answer.value[0]
        return data

    def head(self, key: str) -> ObjectInfo | None:
        """See `ObjectStore.head`."""
        path = self._prefix + check_key(key)
        answer = self._deadline.call(f"head {key}", lambda: self._head(path))
        if answer.kind == "missing":
            return None
        self._expect(answer.kind, f"head {key}")
        response = answer.value
        modified = response["LastModified"].timestamp()
        sha256 = response.get("Metadata", {}).get("sha256", "")
        age = max(0.0, server_time(response) - modified)
        return ObjectInfo(key, int(response["ContentLength"]), sha256, modified, age)

    def _head(self, path: str) -> Any:
        try:
            return self._client.head_object(Bucket=self._bucket, Key=path)
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if status not in (301, 400, 403):
                raise
            # a HEAD answer has no body, hence no code: a GET of one byte says why
            self._client.get_object(Bucket=self._bucket, Key=path, Range="bytes=0-0")["Body"].close()
            raise

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list`; one page of at most 1,000 keys is held at a time."""
        for page in self._pages(Prefix=self._prefix + prefix):
            now = server_time(page)
            for item in page.get("Contents", []):
                key, modified = item["Key"].removeprefix(self._prefix), item["LastModified"].timestamp()
                yield ObjectInfo(key, int(item["Size"]), "", modified, max(0.0, now - modified))

    def children(self) -> Iterator[str]:
        """See `ObjectStore.children`."""
        for page in self._pages(Prefix=self._prefix, Delimiter="/"):
            for item in page.get("CommonPrefixes", []):
                yield item["Prefix"].removeprefix(self._prefix).rstrip("/")

    def _pages(self, **arguments: Any) -> Iterator[Any]:
        token: str | None = None
        while True:
            extra = arguments | ({"ContinuationToken": token} if token else {})
            answer = self._deadline.call(
                f"list {arguments['Prefix']}",
                functools.partial(self._list, extra),
            )
            if answer.kind == "missing":
                raise SurroundingsError(f"{self._where()}: expected a bucket, found none")
            self._expect(answer.kind, f"list {arguments['Prefix']}")
            yield answer.value
            token = answer.value.get("NextContinuationToken")
            if not token:
                return

    def _list(self, arguments: dict[str, Any]) -> Any:
        return self._client.list_objects_v2(Bucket=self._bucket, **arguments)

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`; singly, because DeleteObjects is refused by several servers."""
        path = self._prefix + check_key(key)
        answer = self._deadline.call(
            f"delete {key}", lambda: self._client.delete_object(Bucket=self._bucket, Key=path)
        )
        if answer.kind != "missing":
            self._expect(answer.kind, f"delete {key}")

    def abort_leftovers(self, older_than_seconds: float) -> int:
        """See `ObjectStore.abort_leftovers`: multipart uploads that were never finished."""
        found = leftover_uploads(
            self._deadline, lambda: self._client, self._bucket, self._prefix, older_than_seconds
        )
        count = 0
        for path, upload_id in found:
            arguments = {"Bucket": self._bucket, "Key": path, "UploadId": upload_id}
            self._deadline.call(f"abort {path}", functools.partial(self._abort, arguments))
            count += 1
        return count

    def _abort(self, arguments: dict[str, Any]) -> Any:
        return self._client.abort_multipart_upload(**arguments)

    def close(self) -> None:
        """Close the client's connections."""
        self._client.close()

    def _expect(self, kind: str, what: str) -> None:
        if kind != "ok":
            raise SurroundingsError(f"{self._where()}, {what}: expected success, got {kind!r} from the store")
