"""Turns the STORE argument of a verb into an open store."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from deployments.demo.home import DemoHome
from tasks.errors import JobError
from tasks.spec import StoreSpec
from tasks.storage.store import ObjectStore, find_job


@contextmanager
def opened_store(argument: str) -> Iterator[ObjectStore]:
    """Open the job at STORE for the length of the body.

    Args:
        argument: a job's own prefix (folder or `s3://…`), a parent with exactly one job, or `demo`: the
            dataset of `rawseq demo` in this folder, whose S3 server is started meanwhile.

    Raises:
        JobError: no job there, or several.
        SurroundingsError: the store cannot be reached.
    """
    with ExitStack() as stack:
        if argument == "demo":
            home = DemoHome(Path.cwd())
            if not home.exists:
                raise JobError(f"demo: expected {home.folder} (made by `rawseq demo`), found none")
            stack.enter_context(home.alone())
            spec = stack.enter_context(home.store())
            store = find_job(spec, credentials=home.credentials)
        else:
            spec = StoreSpec(uri=argument, endpoint_url=os.environ.get("AWS_ENDPOINT_URL_S3"))
            store = find_job(spec)
        stack.callback(store.close)
        yield store
