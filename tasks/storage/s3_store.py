"""S3 as an object store: single puts with a digest that every dialect checks, retried to a deadline.

- botocore makes one attempt; the loop here is the only retry layer (botocore's own token bucket gives up
  after three seconds of outage however many attempts it is allowed).
- `Content-MD5` is the one guard that AWS, MinIO, Ceph RGW, Swift and SeaweedFS all honour, so every put has
  it; `x-amz-meta-sha256` stays with the object. With `when_required` no trailer is sent, which old dialects
  refuse.
- Transfers never go through s3transfer: its CRT client drops `endpoint_url` and sends data to AWS.
"""

import base64
import functools
import hashlib
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tasks.errors import DataError, JobError, SurroundingsError
from tasks.spec import StoreSpec
from tasks.storage.s3_retry import Deadline
from tasks.storage.store import MissingError, ObjectInfo, check_key, parse_s3_uri, sha256_hex

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_CREATION = threading.Lock()  # creating sessions and clients is not thread-safe in boto3; using a client is
_CONNECTIONS = 32


class S3Store:
    """Objects below `s3://bucket/prefix`. One client, made once, used from any thread."""

    def __init__(self, client: "S3Client", bucket: str, prefix: str, deadline_seconds: float) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._deadline = Deadline(deadline_seconds, self._where())
        self.conditional = True
        """Whether puts are made conditional; False where the store was shown not to honour it."""

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
        return cls(make_client(spec, credentials, ca_bundle), bucket, path, spec.deadline_seconds)

    def __repr__(self) -> str:
        return f"S3Store({self._where()!r})"

    @property
    def uri(self) -> str:
        """`s3://bucket/prefix`."""
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def _where(self) -> str:
        return f"{self.uri} at {self._client.meta.endpoint_url}"

    def put(self, key: str, data: bytes, *, create_only: bool = False) -> bool:
        """See `ObjectStore.put`; afterwards HEAD must show the same size and digest."""
        path = self._prefix + check_key(key)
        sha256 = sha256_hex(data)
        arguments: dict[str, Any] = {
            "Bucket": self._bucket,
            "Key": path,
            "Body": data,
            "ContentType": "application/json" if key.endswith(".json") else "application/octet-stream",
            "ContentMD5": base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode(),
            "Metadata": {"sha256": sha256},
        }
        if create_only and self.conditional:
            arguments["IfNoneMatch"] = "*"
        elif create_only and self.head(key) is not None:
            return False
        answer = self._deadline.call(f"put {key}", lambda: self._client.put_object(**arguments))
        if answer.kind == "exists":
            return False
        if answer.kind == "unsupported" and create_only and self.conditional:
            self.conditional = False
            return self.put(key, data, create_only=True)
        self._expect(answer.kind, f"put {key}")
        info = self.head(key)
        if info is None or info.size != len(data) or info.sha256 not in ("", sha256):
            raise DataError(
                f"{self._where()}, {key}: expected {len(data)} bytes with sha256 {sha256} after the put, "
                f"got {info}"
            )
        return True

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

    def _read(self, path: str) -> tuple[bytes, str]:
        response = self._client.get_object(Bucket=self._bucket, Key=path)
        with response["Body"] as body:
            return body.read(), response.get("Metadata", {}).get("sha256", "")

    def head(self, key: str) -> ObjectInfo | None:
        """See `ObjectStore.head`."""
        path = self._prefix + check_key(key)
        answer = self._deadline.call(f"head {key}", lambda: self._head(path))
        if answer.kind == "missing":
            return None
        self._expect(answer.kind, f"head {key}")
        response = answer.value
        return ObjectInfo(
            key,
            int(response["ContentLength"]),
            response.get("Metadata", {}).get("sha256", ""),
            response["LastModified"].timestamp(),
        )

    def _head(self, path: str) -> Any:
        try:
            return self._client.head_object(Bucket=self._bucket, Key=path)
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if status not in (301, 400, 403):
                raise
            # a HEAD answer has no body, hence no code: a GET of one byte says why
            with self._client.get_object(Bucket=self._bucket, Key=path, Range="bytes=0-0")["Body"] as body:
                body.read()
            raise

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list`; one page of at most 1,000 keys is held at a time."""
        for page in self._pages(Prefix=self._prefix + prefix):
            for item in page.get("Contents", []):
                yield ObjectInfo(
                    item["Key"].removeprefix(self._prefix),
                    int(item["Size"]),
                    "",
                    item["LastModified"].timestamp(),
                )

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
                functools.partial(self._client.list_objects_v2, Bucket=self._bucket, **extra),
            )
            if answer.kind == "missing":
                raise SurroundingsError(f"{self._where()}: expected a bucket, found none")
            self._expect(answer.kind, f"list {arguments['Prefix']}")
            yield answer.value
            token = answer.value.get("NextContinuationToken")
            if not token:
                return

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`; singly, because DeleteObjects is refused by several servers."""
        path = self._prefix + check_key(key)
        answer = self._deadline.call(
            f"delete {key}", lambda: self._client.delete_object(Bucket=self._bucket, Key=path)
        )
        if answer.kind != "missing":
            self._expect(answer.kind, f"delete {key}")

    def close(self) -> None:
        """Close the client's connections."""
        self._client.close()

    def _expect(self, kind: str, what: str) -> None:
        if kind != "ok":
            raise SurroundingsError(f"{self._where()}, {what}: expected success, got {kind!r} from the store")


def make_client(spec: StoreSpec, credentials: Mapping[str, str] | None, ca_bundle: str | None) -> "S3Client":
    """Build a client with fixed timeouts and no retries of its own.

    Raises:
        JobError: when the endpoint or the region is not one.
        SurroundingsError: when the AWS configuration (profile, files) is broken.
    """
    config = Config(
        signature_version="s3v4",
        s3={"addressing_style": spec.addressing_style},
        retries={"mode": "standard", "total_max_attempts": 1},
        connect_timeout=5,
        read_timeout=60,
        max_pool_connections=_CONNECTIONS,
        tcp_keepalive=True,
        request_checksum_calculation="when_required" if spec.checksums == "auto" else spec.checksums,
        response_checksum_validation="when_supported" if spec.checksums == "auto" else spec.checksums,
    )
    names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
    given: dict[str, Any] = (
        {name: credentials[name] for name in names if name in credentials} if credentials else {}
    )
    try:
        with _CREATION:
            client: S3Client = boto3.Session(region_name=spec.region, **given).client(
                "s3", endpoint_url=spec.endpoint_url, config=config, verify=ca_bundle
            )
    except ValueError as error:
        raise JobError(
            f"store.endpoint_url: expected http(s)://host:port, got {spec.endpoint_url!r}"
        ) from error
    except BotoCoreError as error:
        raise SurroundingsError(f"AWS configuration for {spec.uri}: {error}") from error
    return client
