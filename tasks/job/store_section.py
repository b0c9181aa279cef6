"""The store section of `JobSpec`: where the dataset goes (pure)."""

from typing import Literal

from tasks.job.sections import Address, Section, Url, field


class StoreSpec(Section):
    """Where the dataset goes. Never a secret: credentials come from the AWS chain or a Prefect block."""

    uri: Address = field(
        ..., "Folder, or s3://bucket/prefix; the job's own prefix is made below it.", 0, min_length=1
    )
    endpoint_url: Url | None = field(None, "S3 endpoint when it is not AWS.", 1)
    region: str | None = field(None, "S3 region; empty: from the environment.", 2)
    addressing_style: Literal["auto", "path", "virtual"] = field(
        "auto", "How the bucket is named in URLs.", 3
    )
    checksums: Literal["auto", "when_supported", "when_required"] = field(
        "auto", "botocore's checksum setting; auto: probed at start.", 4
    )
    credentials_block: str | None = field(
        None,
        "Prefect block with the keys: name of a Secret block that holds JSON, or aws-credentials/NAME.",
        5,
        pattern=r"^(aws-credentials/)?[a-z0-9-]+$",
    )
    deadline_seconds: float = field(
        300.0,
        "How long one object's upload is retried before the batch fails, in seconds.",
        6,
        gt=0,
        le=86400,
    )
