"""Prompt files in S3, read by ranges: any record can be reached without fetching what lies before it."""

import contextlib
import fnmatch
import functools
import io
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

import attrs

from tasks.errors import SourceError
from tasks.job.spec import StoreSpec
from tasks.store.contract import parse_s3_uri
from tasks.store.s3_client import make_client
from tasks.store.s3_retry import Deadline

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

CHUNK_BYTES: Final = 8 * 2**20


@attrs.frozen(slots=True)
class S3Object:
    """One object of a bucket as a file that can be opened again and again."""

    bucket: "S3Bucket"
    key: str

    @property
    def uri(self) -> str:
        """`s3://bucket/key`."""
        return f"s3://{self.bucket.name}/{self.key}"

    def stamp(self) -> str | None:
        """Return size and ETag as text, None if it is not there."""
        found = self.bucket.identity(self.key)
        return None if found is None else f"{found[0]} bytes, {found[1]}"

    def open(self) -> BinaryIO:
        """Open it for reading; `SourceError` if it is gone."""
        return cast(BinaryIO, io.BufferedReader(_Ranges(self), CHUNK_BYTES))


class S3Bucket:
    """A bucket that holds prompt files: lists, and reads byte ranges until a deadline."""

    def __init__(self, name: str, client: "S3Client", deadline_seconds: float) -> None:
        self.name = name
        self._client = client
        self._deadline = Deadline(
            deadline_seconds, f"s3://{name} at {client.meta.endpoint_url}", lambda: False
        )

    def keys(self, pattern: str, suffixes: tuple[str, ...]) -> list[str]:
        """Return the keys that a source names: one object, everything below a prefix, or a glob; in order."""
        wild = min((pattern.find(sign) for sign in "*?[" if sign in pattern), default=-1)
        if wild >= 0:
            found = [key for key in self._list(pattern[:wild]) if fnmatch.fnmatchcase(key, pattern)]
        elif pattern.endswith(suffixes):
            return [pattern]
        else:
            prefix = f"{pattern.rstrip('/')}/" if pattern else ""
            found = list(self._list(prefix))
        return sorted(key for key in found if key.endswith(suffixes))

    def _list(self, prefix: str) -> Iterator[str]:
        token: dict[str, Any] = {}
        while True:
            call = functools.partial(self._page, prefix, token)
            page = self._deadline.call(f"list {prefix}", call).value or {}
            yield from (item["Key"] for item in page.get("Contents", []))
            if not page.get("NextContinuationToken"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def _page(self, prefix: str, token: dict[str, Any]) -> Any:
        return self._client.list_objects_v2(Bucket=self.name, Prefix=prefix, **token)

    def identity(self, key: str) -> tuple[int, str] | None:
        """Return size and ETag of an object, None if it is not there."""
        answer = self._deadline.call(
            f"head {key}", lambda: self._client.head_object(Bucket=self.name, Key=key)
        )
        return (int(answer.value["ContentLength"]), answer.value["ETag"]) if answer.kind == "ok" else None

    def read(self, key: str, start: int, stop: int) -> tuple[bytes, str]:
        """Return bytes [start, stop) of an object and its ETag."""

        def call() -> tuple[bytes, str]:
            response = self._client.get_object(Bucket=self.name, Key=key, Range=f"bytes={start}-{stop - 1}")
            with contextlib.closing(response["Body"]) as body:
                return body.read(), response["ETag"]

        answer = self._deadline.call(f"read {key}", call)
        return answer.value or (b"", "")


class _Ranges(io.RawIOBase):
    """An object's bytes, fetched as they are asked for; refuses to go on when the object changes."""

    def __init__(self, source: S3Object) -> None:
        super().__init__()
        identity = source.bucket.identity(source.key)
        if identity is None:
            raise SourceError(f"{source.uri}: expected an object, found none")
        self._source = source
        self._size, self._etag = identity
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        self._place = max(0, base + offset)
        return self._place

    def readinto(self, buffer: Any) -> int:
        stop = min(self._size, self._place + len(buffer))
        if stop <= self._place:
            return 0
        data, etag = self._source.bucket.read(self._source.key, self._place, stop)
        if etag != self._etag or len(data) != stop - self._place:
            raise SourceError(f"{self._source.uri}: expected the object not to change while it is read")
        buffer[: len(data)] = data
        self._place = stop
        return len(data)


def s3_objects(
    uri: str,
    suffixes: tuple[str, ...],
    store: StoreSpec | None,
    credentials: Mapping[str, str] | None,
    clients: "dict[str, S3Client]",
) -> list[S3Object]:
    """Return the objects that an `s3://` source names.

    Args:
        uri: one object, a prefix, or a glob.
        suffixes: of files that hold prompts.
        store: endpoint and region are those of the job's store, if that is S3 too; None: the AWS chain's.
        credentials: as in `open_store`.
        clients: kept by the caller, so that sources share one client.
    """
    bucket, pattern = parse_s3_uri(uri)
    remote = store is not None and store.uri.startswith("s3://")
    spec = store if store is not None and remote else StoreSpec(uri=f"s3://{bucket}")
    if "client" not in clients:
        clients["client"] = make_client(spec, credentials if remote else None, None)
    home = S3Bucket(bucket, clients["client"], spec.deadline_seconds)
    return [S3Object(home, key) for key in home.keys(pattern, suffixes)]
