"""Fixtures of the rooms' tests: small whole jobs on both stores, embedded servers."""

from tests.support.servers import nursery, quiet, right, shared
from tests.support.small_jobs import certificate, kit, prompts, s3_spec, seaweed, store

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
