"""A store opened by its address, and the only job found below one."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tasks.errors import JobError
from tasks.job.spec import StoreSpec
from tasks.store.contract import ObjectInfo, ObjectStore
from tasks.store.folder import FolderStore


def open_store(
    spec: StoreSpec,
    prefix: str = "",
    credentials: Mapping[str, str] | None = None,
    *,
    ca_bundle: str | None = None,
) -> ObjectStore:
    """Open `<spec.uri>/<prefix>`: a folder, or S3 for `s3://`. Creates no bucket and asks nothing yet.

    Args:
        spec: the job's store section.
        prefix: the job id, or "" when `spec.uri` already is a job's own prefix.
        credentials: `aws_access_key_id`, `aws_secret_access_key` and perhaps `aws_session_token`, of a
            Prefect block that the caller resolved; None leaves it to the AWS chain.
        ca_bundle: PEM file that signs the endpoint's certificate; None leaves it to the AWS chain.
    """
    if spec.uri.startswith("s3://"):
        from tasks.store.s3 import S3Store  # boto3 takes a third of a second to import

        return S3Store.open(spec, prefix, credentials, ca_bundle)
    if re.match(r"[a-z][a-z0-9+.-]*://", spec.uri) and not spec.uri.startswith("file://"):
        raise JobError(f"store.uri: expected a folder or s3://bucket/prefix, got {spec.uri!r}")
    folder = Path(spec.uri.removeprefix("file://")).expanduser()
    return FolderStore((folder / prefix if prefix else folder).absolute())


def find_job(spec: StoreSpec, **options: Any) -> ObjectStore:
    """Open the job at `spec.uri`: the prefix that holds `job.json`, or the only job right below it.

    Raises:
        JobError: no job there, or several: lists them.
    """
    store = open_store(spec, **options)
    if store.head("job.json") is not None:
        return store
    jobs = sorted({info.key.split("/")[0] for info in _job_files(store)})
    store.close()
    if len(jobs) == 1:
        return open_store(spec, jobs[0], **options)
    if not jobs:
        raise JobError(f"{spec.uri}: expected the prefix of a job (with job.json), found none there")
    raise JobError(f"{spec.uri}: holds {len(jobs)} jobs; name one: " + ", ".join(jobs))


def _job_files(store: ObjectStore) -> Iterator[ObjectInfo]:
    for child in store.children():
        info = store.head(f"{child}/job.json")
        if info is not None:
            yield info
