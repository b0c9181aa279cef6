"""Fixtures of the rooms' tests: small whole jobs on both stores, embedded servers."""

import functools

import botocore.loaders
import botocore.session

from tests.support.servers import nursery, quiet, right, shared
from tests.support.small_jobs import certificate, kit, prompts, s3_spec, seaweed, store

# What botocore has on S3 is parsed once in a worker, not for each of hundreds of clients: 0.1 s each.
botocore.session.create_loader = functools.lru_cache(botocore.loaders.create_loader)

__all__ = [
    "certificate",
    "kit",
    "nursery",
    "prompts",
    "quiet",
    "right",
    "s3_spec",
    "seaweed",
    "shared",
    "store",
]
