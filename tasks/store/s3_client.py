"""How an S3 client is made and what a put carries: timeouts, checksums, digests."""

import base64
import email.utils
import hashlib
import threading
import time
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import attrs
import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from tasks.errors import JobError, SurroundingsError
from tasks.job.redaction import redact
from tasks.job.spec import StoreSpec
from tasks.store.contract import sha256_hex

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

CONNECT_SECONDS: Final = 5.0
READ_SECONDS: Final = 60.0
"""Time limit of one socket operation, not of a call."""

_CREATION = threading.Lock()  # creating sessions and clients is not thread-safe in boto3; using a client is
_CONNECTIONS = 32


@attrs.frozen(slots=True)
class Modes:
    """What a server honours, and so how it is used.

    Args:
        checksums: of botocore: `when_supported` adds CRC32 (over TLS as a trailer), `when_required` no.
        conditional: puts with `If-None-Match: *` are honoured: exactly one of several writers wins.
        read_back: the server accepts bytes that contradict their digest, so every put is read back.
    """

    checksums: str = "when_required"
    conditional: bool = True
    read_back: bool = False


_TYPES: Final = {
    ".json": "application/json",
    ".html": "text/html; charset=utf-8",
    ".md": "text/markdown; charset=utf-8",
}
"""What a browser is told of published documents; without it, it offers a page for download."""


def content_type(path: str) -> str:
    """Return the Content-Type of an object by the suffix of its key."""
    return _TYPES.get(PurePosixPath(path).suffix, "application/octet-stream")


def put_arguments(bucket: str, path: str, data: bytes) -> dict[str, Any]:
    """Return what every single put carries: Content-MD5, and the sha256 that stays with the object."""
    return {
        "Bucket": bucket,
        "Key": path,
        "Body": data,
        "ContentType": content_type(path),
        "ContentMD5": content_md5(data),
        "Metadata": {"sha256": sha256_hex(data)},
    }


def server_time(response: Any) -> float:
    """Return seconds since the epoch by the server's clock, from an answer's Date header."""
    date = response["ResponseMetadata"]["HTTPHeaders"].get("date", "")
    try:
        return email.utils.parsedate_to_datetime(date).timestamp()
    except ValueError:
        return time.time()


def content_md5(data: bytes | memoryview) -> str:
    """Return the value of the Content-MD5 header."""
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def make_client(spec: StoreSpec, credentials: Mapping[str, str] | None, ca_bundle: str | None) -> "S3Client":
    """Build a client with fixed timeouts and no retries of its own.

    Raises:
        JobError: when the endpoint or the region is not one.
        SurroundingsError: when the AWS configuration (profile, files) is broken.
    """
    host = urlsplit(spec.endpoint_url or "").hostname
    config = Config(
        proxies={} if host in ("localhost", "127.0.0.1", "::1") else None,  # this machine needs none
        signature_version="s3v4",
        s3={"addressing_style": spec.addressing_style},
        retries={"mode": "standard", "total_max_attempts": 1},
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
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
        raise SurroundingsError(f"AWS configuration for {spec.uri}: {redact(str(error))}") from error
    return client
