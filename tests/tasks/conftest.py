"""Fixtures of the rooms' tests: families, small whole jobs on both stores, embedded servers."""

from tests.support.families import load, model_folder, pytest_collection_modifyitems
from tests.support.servers import nursery, quiet, right, shared
from tests.support.small_jobs import certificate, kit, prompts, s3_spec, seaweed, store

__all__ = [
    "certificate",
    "kit",
    "load",
    "model_folder",
    "nursery",
    "prompts",
    "pytest_collection_modifyitems",
    "quiet",
    "right",
    "s3_spec",
    "seaweed",
    "shared",
    "store",
]
