"""Large objects in parts: uploaded side by side, each with its digest, finished once or taken back.

Only content under its own digest is ever this large, so nothing here is conditional: a conditional Complete
is ignored by some servers and not atomic on others.
"""

import contextlib
import datetime
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import attrs

from tasks.errors import LaterError, RawseqError, SurroundingsError
from tasks.store.contract import sha256_hex
from tasks.store.s3_client import content_md5, content_type
from tasks.store.s3_retry import Answer, Deadline

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef

LARGEST_SINGLE_PUT: Final = 100 * 2**20
"""Up to this size one put is as fast and half the CPU; S3 allows 5 GB."""

PART_BYTES: Final = 32 * 2**20
_AT_ONCE: Final = 4


@attrs.frozen(slots=True)
class Content:
    """Bytes on their way to an object.

    Args:
        size: in bytes.
        sha256: of all of them, in hex.
        read: returns bytes [start, stop), from any thread.
    """

    size: int
    sha256: str
    read: Callable[[int, int], bytes]

    @classmethod
    def of(cls, data: bytes) -> "Content":
        """Return bytes that are in memory as content."""
        return cls(len(data), sha256_hex(data), lambda start, stop: data[start:stop])


def put_parts(
    deadline: Deadline, client: "Callable[[], S3Client]", bucket: str, path: str, content: Content
) -> None:
    """Upload `content` in parts, four at a time; a failed upload is aborted: nothing is left to pay for.

    Raises:
        SurroundingsError: a person must act.
        LaterError: the deadline of a part passed, or somebody aborted the upload.
    """
    where: dict[str, Any] = {"Bucket": bucket, "Key": path}
    started = deadline.call(
        f"start upload of {path}",
        lambda: client().create_multipart_upload(
            **where, Metadata={"sha256": content.sha256}, ContentType=content_type(path)
        ),
    )
    if started.kind != "ok":
        raise SurroundingsError(
            f"s3://{bucket}/{path}: this store takes no multipart uploads: lower batch.rows or --file-tokens"
        )
    upload = where | {"UploadId": started.value["UploadId"]}

    def send(number: int) -> "CompletedPartTypeDef":
        part = content.read((number - 1) * PART_BYTES, min(number * PART_BYTES, content.size))
        arguments = upload | {"PartNumber": number, "Body": part, "ContentMD5": content_md5(part)}
        answer = deadline.call(f"part {number} of {path}", lambda: client().upload_part(**arguments))
        return {"PartNumber": number, "ETag": _taken(answer, f"s3://{bucket}/{path}")["ETag"]}

    try:
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="rawseq-parts") as pool:
            parts = list(pool.map(send, range(1, 1 + -(-content.size // PART_BYTES))))
        # `missing` is a Complete whose first answer was lost: the caller's HEAD decides
        deadline.call(
            f"finish upload of {path}",
            lambda: client().complete_multipart_upload(**upload, MultipartUpload={"Parts": parts}),
        )
    except BaseException:
        with contextlib.suppress(RawseqError):
            deadline.call(f"abort upload of {path}", lambda: client().abort_multipart_upload(**upload))
        raise


def _taken(answer: Answer, where: str) -> Any:
    """Return what a part's answer holds; NoSuchUpload: a lifecycle rule, or another run that tidies up."""
    if answer.kind != "ok":
        raise LaterError(f"{where}: expected its multipart upload, got that it was aborted meanwhile")
    return answer.value


def leftover_uploads(
    deadline: Deadline, client: "Callable[[], S3Client]", bucket: str, prefix: str, older_than_seconds: float
) -> Iterator[tuple[str, str]]:
    """Yield (key, upload id) of unfinished uploads below `prefix` that were begun long enough ago."""
    now = datetime.datetime.now(datetime.UTC)
    markers: dict[str, Any] = {}
    while True:
        answer = deadline.call(
            f"list uploads {prefix}", functools.partial(_uploads, client(), bucket, prefix, markers)
        )
        if answer.kind != "ok":
            return
        for item in answer.value.get("Uploads", []):
            if (now - item["Initiated"]).total_seconds() >= older_than_seconds:
                yield item["Key"], item["UploadId"]
        if not answer.value.get("IsTruncated"):
            return
        markers = {
            "KeyMarker": answer.value["NextKeyMarker"],
            "UploadIdMarker": answer.value["NextUploadIdMarker"],
        }


def _uploads(client: "S3Client", bucket: str, prefix: str, markers: dict[str, Any]) -> Any:
    return client.list_multipart_uploads(Bucket=bucket, Prefix=prefix, **markers)
