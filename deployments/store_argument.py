"""Turns the STORE argument of a verb into an open store."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from deployments.demo.home import DemoHome
from tasks.errors import JobError
from tasks.jobfile import build_section
from tasks.spec import StoreSpec
from tasks.storage.store import ObjectStore, find_job


def store_spec(argument: str, where: str = "STORE") -> StoreSpec:
    """Return the store section of an address that was typed; its endpoint comes from the AWS environment.

    Raises:
        JobError: it is no address of a store; the message begins with `where`.
    """
    return build_section(StoreSpec, {"uri": argument}, where)


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
            store = find_job(store_spec(argument))
        stack.callback(store.close)
        yield store
